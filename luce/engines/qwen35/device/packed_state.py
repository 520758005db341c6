"""A slot's state in one run of bytes: how it is laid out, and the pieces that one launch moves to and from there.

All of it is moved by one kernel, ``copy_pieces``, at the device memory's pace: 0.25 GB of a 27B take a fifth of a
millisecond, which on their way to the host take 5. What is packed is what a copy keeps (:mod:`.copies`): S, the ring
rows of one chunk, 3 rows before convolution, and keys and values of one block.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt

from luce.compute.device import Array
from luce.engines.qwen35.config import TextConfig
from luce.engines.qwen35.device.descriptors import BLOCK_ROWS, CHUNK_ROWS, CONV_ROWS, PIECE, RING_ROWS
from luce.engines.qwen35.device.layouts import CONV_TAPS, StatePart, state_parts
from luce.engines.qwen35.device.pool import DevicePool
from luce.engines.qwen35.memory_parts import ArraySpec

__all__ = [
    "ON_DEVICE",
    "PackedPart",
    "PackedPieces",
    "conv_window",
    "copy_arrays",
    "packed_bytes",
    "packed_parts",
    "piece_bytes",
]

Host = npt.NDArray[Any]

ALIGNED = 64
"""Bytes between the beginnings of parts, or a multiple of them."""
ON_DEVICE = 2
"""Packed states on the device at once: two prompts that end in a step, or a prompt's picture and turn, do not wait for
the bus."""
COUNT_BYTES = 16
"""Before the pieces stands their number."""
THREADS = 256


@attrs.frozen
class PackedPart:
    name: str
    """As in :func:`state_parts`; "keys" and "values" of a block."""
    shape: tuple[int, ...]
    """[layers, …]"""
    dtype: str
    offset: int
    """Of its first byte."""

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    def of(self, packed: Host) -> Host:
        """The part in packed bytes, as an array."""
        found: Host = packed[self.offset : self.offset + self.nbytes].view(self.dtype).reshape(self.shape)
        return found


def conv_window(position: int) -> npt.NDArray[np.intp]:
    """Places of the 3 rows that the convolution of row ``position`` reads before it."""
    places: npt.NDArray[np.intp] = np.arange(position - CONV_TAPS, position) % CONV_ROWS
    return places


def packed_parts(config: TextConfig) -> tuple[PackedPart, ...]:
    """In the order of their bytes."""
    attention = sum(config.full_attention)
    linear = config.num_layers - attention
    tiles = (attention, config.kv_heads, BLOCK_ROWS * config.head_dim)
    wanted = [(part.name, (linear, *_kept(part)), part.dtype) for part in state_parts(config)]
    wanted += [("keys", tiles, "uint16"), ("values", tiles, "uint16")]
    found: list[PackedPart] = []
    offset = 0
    for name, shape, dtype in wanted:
        found.append(PackedPart(name, shape, dtype, offset))
        offset += -(-found[-1].nbytes // ALIGNED) * ALIGNED
    return tuple(found)


def _kept(part: StatePart) -> tuple[int, ...]:
    """Shape of what a copy keeps of a part."""
    if part.axis is None:
        return part.shape
    rows = CONV_TAPS if part.name == "conv" else CHUNK_ROWS
    return (*part.shape[: part.axis], rows, *part.shape[part.axis + 1 :])


def packed_bytes(config: TextConfig) -> int:
    last = packed_parts(config)[-1]
    return last.offset + -(-last.nbytes // ALIGNED) * ALIGNED


def _num_pieces(config: TextConfig) -> int:
    """With a block's keys and values: one for every head, and for every row before convolution."""
    return sum(math.prod(part.shape[:2]) for part in packed_parts(config))


def piece_bytes(config: TextConfig) -> int:
    """Of the pieces' descriptors and their number."""
    return COUNT_BYTES + _num_pieces(config) * PIECE.itemsize


def copy_arrays(config: TextConfig, count: int = ON_DEVICE) -> Iterator[ArraySpec]:
    """Packed states on the device, and their pieces."""
    part = "copies of states"
    yield ArraySpec(part, "packed states", (count, packed_bytes(config)), "uint8")
    yield ArraySpec(part, "pieces", (count, piece_bytes(config)), "uint8")


class PackedPieces:
    """Makes and launches the pieces of a pool's slots."""

    def __init__(self, pool: DevicePool) -> None:
        self._pool = pool
        self._kernel = pool.device.kernel("copies.cu", "copy_pieces")
        config = pool.config
        self._base: Array = pool.state["s"]
        """What addresses in the pool count from."""
        rows = list(self._heads(state_parts(config), packed_parts(config)))
        columns = np.concatenate(rows) if rows else np.zeros((0, 5), np.int64)
        self._packed, self._there, self._bytes, self._per_slot, self._per_row = columns.T.copy()

    def _address(self, array: Array) -> int:
        address = self._pool.device.address
        return address(array) - address(self._base)

    def _heads(
        self, parts: tuple[StatePart, ...], packed: tuple[PackedPart, ...]
    ) -> Iterator[npt.NDArray[np.int64]]:
        """Of every part but convolution's rows: [pieces, 5] place among packed bytes, place in the pool for slot 0 and
        ring row 0, bytes, and bytes from a slot and from a row to the next."""
        slots = self._pool.num_slots
        for part, to in zip(parts, packed, strict=False):
            if part.name == "conv":
                continue
            layers, heads = to.shape[:2]
            size = to.nbytes // max(layers * heads, 1)
            row = 0 if part.axis is None else size // CHUNK_ROWS
            here = part.nbytes // heads
            layer, head = (axis.ravel() for axis in np.indices((layers, heads)))
            found = np.empty((layers * heads, 5), np.int64)
            found[:, 0] = to.offset + (layer * heads + head) * size
            found[:, 1] = (
                self._address(self._pool.state[part.name]) + layer * slots * part.nbytes + head * here
            )
            found[:, 2:] = size, part.nbytes, row
            yield found

    def fill(self, to: Host, slot: int, position: int, block: int | None, *, packing: bool) -> int:
        """The pieces of a slot at a position, with keys and values of ``block``, into ``to`` [piece_bytes]. Returns
        their number.

        Args:
            packing: out of the pool; else into it.
        """
        ring = position // CHUNK_ROWS * CHUNK_ROWS % RING_ROWS
        parts = {part.name: part for part in packed_parts(self._pool.config)}
        made = [
            np.stack(
                [self._packed, self._there + slot * self._per_slot + ring * self._per_row, self._bytes],
                axis=1,
            ),
            self._window(parts["conv"], slot, position),
        ]
        if block is not None:
            made += [self._tiles(parts[name], name, block) for name in ("keys", "values")]
        pieces = np.concatenate(made)
        table = to[COUNT_BYTES:].view(PIECE)[: len(pieces)]
        table["to"], table["from"] = pieces[:, :2].T if packing else pieces[:, 1::-1].T
        table["bytes"] = pieces[:, 2]
        to[:4].view(np.int32)[0] = len(pieces)
        return len(pieces)

    def _window(self, to: PackedPart, slot: int, position: int) -> npt.NDArray[np.int64]:
        """Convolution's rows."""
        layers, rows = to.shape[:2]
        row = to.nbytes // max(layers * rows, 1)
        array = self._pool.state["conv"]
        layer, number = (axis.ravel() for axis in np.indices((layers, rows)))
        place = (layer * self._pool.num_slots + slot) * CONV_ROWS + conv_window(position)[number]
        packed = to.offset + (layer * rows + number) * row
        return np.stack([packed, self._address(array) + place * row, np.full(len(layer), row)], axis=1)

    def _tiles(self, to: PackedPart, name: str, block: int) -> npt.NDArray[np.int64]:
        """A block's keys or values, by heads."""
        layers, heads = to.shape[:2]
        tile = to.nbytes // max(layers * heads, 1)
        layer, head = (axis.ravel() for axis in np.indices((layers, heads)))
        place = (layer * self._pool.num_blocks + block) * heads + head
        packed = to.offset + (layer * heads + head) * tile
        there = self._address(self._pool.kv[name]) + place * tile
        return np.stack([packed, there, np.full(len(layer), tile)], axis=1)

    def launch(self, pieces: Array, count: int, packed: Array, *, packing: bool) -> None:
        """Move ``count`` pieces between the pool and packed bytes."""
        to, source = (packed, self._base) if packing else (self._base, packed)
        arguments = [pieces[COUNT_BYTES:], pieces[:4], to, source]
        self._kernel((1, count, 1), THREADS, arguments)
