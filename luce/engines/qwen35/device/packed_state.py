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
    "PackedPart",
    "PackedPieces",
    "conv_window",
    "copy_arrays",
    "packed_bytes",
    "packed_on_device",
    "packed_parts",
    "piece_bytes",
]

Host = npt.NDArray[Any]

ALIGNED = 64
"""Bytes between the beginnings of parts, or a multiple of them."""
LEAST_ON_DEVICE, MOST_ON_DEVICE = 2, 8
"""Packed states on the device at once, each until it is over the bus; one more would hold up the steps. Two are a
prompt's picture and turn, eight those of four prompts that end in a step."""
ON_DEVICE_SHARE = 1 / 50
"""Of the device's memory, for more than the least."""
COUNT_BYTES = 16
"""Before the pieces stands their number."""
THREADS = 256
_TILES = "keys", "values"
_COLUMNS = 6
"""Of a piece: its place among packed bytes; its place in the pool for slot 0, ring row 0 and block 0; bytes; and bytes
from a slot, a ring row and a block to the next."""


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


def packed_on_device(config: TextConfig, slots: int, budget: int) -> int:
    """How many packed states there is to be room for on a device with ``budget`` bytes: two for each slot, as long as
    that is of use and costs little."""
    cheap = int(budget * ON_DEVICE_SHARE) // packed_bytes(config)
    return max(min(2 * slots, cheap, MOST_ON_DEVICE), LEAST_ON_DEVICE)


def copy_arrays(config: TextConfig, count: int) -> Iterator[ArraySpec]:
    """``count`` packed states on the device, and their pieces."""
    part = "copies of states"
    yield ArraySpec(part, "packed states", (count, packed_bytes(config)), "uint8")
    yield ArraySpec(part, "pieces", (count, piece_bytes(config)), "uint8")


def _columns(*values: npt.NDArray[np.int64] | int) -> npt.NDArray[np.int64]:
    """[pieces, 6]."""
    assert len(values) == _COLUMNS
    return np.stack(np.broadcast_arrays(*values), axis=1).astype(np.int64)


class PackedPieces:
    """Makes and launches the pieces of a pool's slots.

    A model of 27B has some 8,000 of them, and a step waits until they are filled in: so where they stand is worked out
    once, and what depends on slot, position and block is added to all of them together.
    """

    def __init__(self, pool: DevicePool) -> None:
        self._pool = pool
        self._kernel = pool.device.kernel("copies.cu", "copy_pieces")
        self._base: Array = pool.state["s"]
        """What addresses in the pool count from."""
        config = pool.config
        parts = {part.name: part for part in packed_parts(config)}
        heads = list(self._heads(state_parts(config), tuple(parts.values())))
        window, tiles = self._window(parts["conv"]), [self._tiles(parts[name], name) for name in _TILES]
        columns = np.concatenate([*heads, window, *tiles]).T.copy()
        self._packed, self._there, self._bytes, self._per_slot, self._per_row, self._per_block = columns
        first = sum(map(len, heads))
        self._conv = slice(first, first + len(window))
        self._without_block = self._conv.stop
        """Pieces but for those of a block's keys and values, which stand last."""

    def _address(self, array: Array) -> int:
        address = self._pool.device.address
        return address(array) - address(self._base)

    def _heads(
        self, parts: tuple[StatePart, ...], packed: tuple[PackedPart, ...]
    ) -> Iterator[npt.NDArray[np.int64]]:
        """Of every part but convolution's rows, as :data:`_COLUMNS` says."""
        slots = self._pool.num_slots
        for part, to in zip(parts, packed, strict=False):
            if part.name == "conv":
                continue
            layers, heads = to.shape[:2]
            size = to.nbytes // max(layers * heads, 1)
            row = 0 if part.axis is None else size // CHUNK_ROWS
            here = part.nbytes // heads
            layer, head = (axis.ravel() for axis in np.indices((layers, heads)))
            place = to.offset + (layer * heads + head) * size
            there = self._address(self._pool.state[part.name]) + layer * slots * part.nbytes + head * here
            yield _columns(place, there, size, part.nbytes, row, 0)

    def fill(self, to: Host, slot: int, position: int, block: int | None, *, packing: bool) -> int:
        """The pieces of a slot at a position, with keys and values of ``block``, into ``to`` [piece_bytes]. Returns
        their number.

        Args:
            packing: out of the pool; else into it.
        """
        count = self._without_block if block is None else len(self._packed)
        ring = position // CHUNK_ROWS * CHUNK_ROWS % RING_ROWS
        there = self._there[:count] + slot * self._per_slot[:count]
        if ring:
            there += ring * self._per_row[:count]
        if block is not None:
            there += block * self._per_block
        rows = there[self._conv].reshape(-1, CONV_TAPS)
        rows += conv_window(position) * self._bytes[self._conv].reshape(-1, CONV_TAPS)
        table = to[COUNT_BYTES:].view(np.int64)[: 3 * count].reshape(count, 3)  # as in PIECE
        table[:, 0 if packing else 1] = self._packed[:count]
        table[:, 1 if packing else 0] = there
        table[:, 2] = self._bytes[:count]
        to[:4].view(np.int32)[0] = count
        return count

    def _window(self, to: PackedPart) -> npt.NDArray[np.int64]:
        """Of convolution's rows, as :data:`_COLUMNS` says, for row 0 of its places."""
        layers, rows = to.shape[:2]
        row = to.nbytes // max(layers * rows, 1)
        layer, number = (axis.ravel() for axis in np.indices((layers, rows)))
        there = self._address(self._pool.state["conv"]) + layer * self._pool.num_slots * CONV_ROWS * row
        return _columns(to.offset + (layer * rows + number) * row, there, row, CONV_ROWS * row, 0, 0)

    def _tiles(self, to: PackedPart, name: str) -> npt.NDArray[np.int64]:
        """Of a block's keys or values, by heads, as :data:`_COLUMNS` says."""
        layers, heads = to.shape[:2]
        tile = to.nbytes // max(layers * heads, 1)
        layer, head = (axis.ravel() for axis in np.indices((layers, heads)))
        there = self._address(self._pool.kv[name]) + (layer * self._pool.num_blocks * heads + head) * tile
        return _columns(to.offset + (layer * heads + head) * tile, there, tile, 0, 0, heads * tile)

    def launch(self, pieces: Array, count: int, packed: Array, *, packing: bool) -> None:
        """Move ``count`` pieces between the pool and packed bytes."""
        to, source = (packed, self._base) if packing else (self._base, packed)
        arguments = [pieces[COUNT_BYTES:], pieces[:4], to, source]
        self._kernel((1, count, 1), THREADS, arguments)
