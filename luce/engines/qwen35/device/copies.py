"""Copies of a slot's state in host memory: saved slots and prefix snapshots (design §6).

They are taken while steps go on (:mod:`.staging`): a prefix snapshot of 27B is 0.25 GB, for which every stream would
pause.

A copy has one form, whatever way the slot came to its rows: rings and windows hold exact zeros in the place of rows
that are not there. So two copies at the same position of the same content are equal bit for bit.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt

from luce.compute.device import Array
from luce.engines.digest import content_digest
from luce.engines.qwen35.device.descriptors import BLOCK_ROWS, CHUNK_ROWS, CONV_ROWS, RING_ROWS
from luce.engines.qwen35.device.layouts import CONV_TAPS, StatePart, block_rows, rows_block, state_parts
from luce.engines.qwen35.device.pool import DevicePool
from luce.engines.qwen35.device.slots import DeviceSlot
from luce.engines.qwen35.device.staging import Staged, Staging
from luce.engines.qwen35.slots import Slot

__all__ = [
    "DeviceCopies",
    "DeviceSnapshot",
    "conv_window",
    "download_kv",
    "put_state",
    "upload_kv",
]

Host = npt.NDArray[Any]

ALIGNED = 64
"""Bytes between the beginnings of arrays in a copy, or a multiple of them."""


@attrs.frozen(eq=False)
class DeviceSnapshot:
    """State after exactly ``position`` tokens, in host memory and read-only."""

    position: int
    first: int
    """First position whose keys and values are here; those before it stand in shared blocks."""
    digest: bytes
    """Of the token ids and M-RoPE positions of the ``position`` rows."""
    _layers: tuple[dict[str, Host], ...]
    _kv: tuple[tuple[Host, Host], ...]
    _staged: Staged = attrs.field(factory=Staged)
    """What fills the arrays."""

    @property
    def layers(self) -> tuple[dict[str, Host], ...]:
        """Per DeltaNet layer the parts of :func:`.layouts.state_parts` by name: S, the ring rows of the 64-chunk that
        ``position`` lies in, and the 3 rows before convolution. Waits until they are there."""
        self._staged.wait()
        return self._layers

    @property
    def kv(self) -> tuple[tuple[Host, Host], ...]:
        """Per attention layer keys and values [position - first, Hkv, D], bfloat16 bits. Waits until they are there."""
        self._staged.wait()
        return self._kv

    def arrays(self) -> Iterator[Host]:
        """Waits until they are there."""
        self._staged.wait()
        return self._all()

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self._all())

    def _all(self) -> Iterator[Host]:
        for layer in self._layers:
            yield from layer.values()
        for pair in self._kv:
            yield from pair


def conv_window(position: int) -> npt.NDArray[np.intp]:
    """Places of the 3 rows that the convolution of row ``position`` reads before it."""
    places: npt.NDArray[np.intp] = np.arange(position - CONV_TAPS, position) % CONV_ROWS
    return places


def _kept_shape(part: StatePart) -> tuple[int, ...]:
    """Of a part in a copy."""
    if part.axis is None:
        return part.shape
    rows = CONV_TAPS if part.name == "conv" else CHUNK_ROWS
    return (*part.shape[: part.axis], rows, *part.shape[part.axis + 1 :])


def _staged_shape(part: StatePart) -> tuple[int, ...]:
    """Of a part on its way: of convolution's window the rows that are kept, all else whole."""
    return _kept_shape(part) if part.name == "conv" else part.shape


def _fill(part: StatePart, to: Host, staged: Host, position: int) -> None:
    """One layer's part of a copy."""
    base = position // CHUNK_ROWS * CHUNK_ROWS
    if part.axis is None:
        to[...] = staged if base else 0
    elif part.name == "conv":
        to[...] = staged
        to[: max(CONV_TAPS - position, 0)] = 0
    else:
        first = base % RING_ROWS
        np.moveaxis(to, part.axis, 0)[...] = np.moveaxis(staged, part.axis, 0)[first : first + CHUNK_ROWS]
        np.moveaxis(to, part.axis, 0)[position - base :] = 0


def _arrays(wanted: Sequence[tuple[tuple[int, ...], str]]) -> Iterator[Host]:
    """Arrays of shapes and dtypes out of one allocation, which is large enough for huge pages: memory comes page by
    page when it is first written, which takes several times as long with small ones."""
    sizes = [math.prod(shape) * np.dtype(dtype).itemsize for shape, dtype in wanted]
    places = [0, *itertools.accumulate(-(-size // ALIGNED) * ALIGNED for size in sizes)]
    room = np.empty(places[-1], np.uint8)
    for at, size, (shape, dtype) in zip(places, sizes, wanted, strict=False):
        yield room[at : at + size].view(dtype).reshape(shape)


def _runs(places: npt.NDArray[np.intp]) -> Iterator[tuple[int, int, int]]:
    """Places in a row as (number of the first, its place, how many)."""
    cuts = [0, *(np.flatnonzero(np.diff(places) != 1) + 1).tolist(), len(places)]
    for at, end in itertools.pairwise(cuts):
        yield at, int(places[at]), end - at


def put_state(pool: DevicePool, slot: int, position: int, layers: tuple[dict[str, Host], ...]) -> None:
    """The reverse of :func:`take_state`. Rows that the copy has not are left as they are."""
    base = position // CHUNK_ROWS * CHUNK_ROWS
    for number, layer in enumerate(layers):
        for part in state_parts(pool.config):
            target = pool.state[part.name][number, slot]
            values = layer[part.name]
            if part.axis is not None:
                whole = np.zeros(part.shape, part.dtype)
                places = conv_window(position)
                if part.name != "conv":
                    places = np.arange(base, base + CHUNK_ROWS, dtype=np.intp) % RING_ROWS
                np.moveaxis(whole, part.axis, 0)[places] = np.moveaxis(values, part.axis, 0)
                values = whole
            pool.device.upload(target, np.ascontiguousarray(values))


def download_kv(
    pool: DevicePool, table: tuple[int, ...], first: int, end: int
) -> tuple[tuple[Host, Host], ...]:
    """Per attention layer keys and values [end - first, Hkv, D] of the positions ``first`` … ``end`` - 1."""
    config, found = pool.config, []
    low = first // BLOCK_ROWS
    for layer in range(sum(config.full_attention)):
        pair = []
        for name in ("keys", "values"):
            rows = [
                block_rows(
                    pool.device.numpy(pool.kv[name][layer, table[index]]),
                    config.head_dim,
                    values=name == "values",
                )
                for index in range(low, -(-end // BLOCK_ROWS))
            ]
            joined = (
                np.concatenate(rows) if rows else np.zeros((0, config.kv_heads, config.head_dim), np.uint16)
            )
            pair.append(joined[first - low * BLOCK_ROWS : end - low * BLOCK_ROWS].copy())
        found.append((pair[0], pair[1]))
    return tuple(found)


def upload_kv(
    pool: DevicePool, table: tuple[int, ...], first: int, kv: tuple[tuple[Host, Host], ...]
) -> None:
    """Put keys and values of the positions from ``first``, a multiple of 64, into the blocks of ``table``. The rest of
    the last block becomes zeros."""
    assert first % BLOCK_ROWS == 0
    for layer, pair in enumerate(kv):
        for name, rows in zip(("keys", "values"), pair, strict=True):
            for at in range(0, len(rows), BLOCK_ROWS):
                block = np.zeros((BLOCK_ROWS, *rows.shape[1:]), np.uint16)
                part = rows[at : at + BLOCK_ROWS]
                block[: len(part)] = part
                target = pool.kv[name][layer, table[(first + at) // BLOCK_ROWS]]
                pool.device.upload(target, rows_block(block, values=name == "values"))


class DeviceCopies:
    """:class:`luce.engines.qwen35.stored_states.Copies` of a device's pool."""

    def __init__(self, pool: DevicePool, commit: Callable[[DeviceSlot, int], None]) -> None:
        """``commit(slot, position)``: see :meth:`commit`."""
        self._pool, self._commit = pool, commit
        self._parts = state_parts(pool.config)
        self._num_layers = int(pool.state["s"].shape[0])
        staged = {part.name: ((self._num_layers, *_staged_shape(part)), part.dtype) for part in self._parts}
        staged |= {
            name: ((int(array.shape[0]), *map(int, array.shape[2:])), "uint16")
            for name, array in pool.kv.items()
        }
        self._staging = Staging(pool.device, staged)

    def prepare(self) -> None:
        """Take the memory that copies need on their way."""
        self._staging.prepare()

    def close(self) -> None:
        """Wait for copies under way; there must be no more of them."""
        self._staging.close()

    def commit(self, slot: Slot, position: int) -> None:
        assert isinstance(slot, DeviceSlot) and slot.start <= position <= slot.high
        self._commit(slot, position)

    def take(self, slot: Slot, first: int) -> DeviceSnapshot:
        """The copies are launched when it returns; only keys and values of more than a block are waited for."""
        pool, position = self._pool, slot.start
        assert slot.base == position // CHUNK_ROWS * CHUNK_ROWS and 0 <= first <= position
        blocks = slot.table[first // BLOCK_ROWS : -(-position // BLOCK_ROWS)]
        few = len(blocks) <= 1
        config = pool.config
        shape = (position - first, config.kv_heads, config.head_dim)
        kept = [(_kept_shape(part), part.dtype) for part in self._parts]
        made = _arrays(
            [*kept * self._num_layers, *[(shape, "uint16")] * (2 * sum(config.full_attention) * few)]
        )
        layers = tuple({part.name: next(made) for part in self._parts} for _ in range(self._num_layers))
        kv = (
            tuple((next(made), next(made)) for _ in range(sum(config.full_attention)))
            if few
            else download_kv(pool, slot.table, first, position)
        )

        def launches(buffer: dict[str, Host]) -> Iterator[tuple[Host, Array]]:
            window = conv_window(position)
            for part in self._parts:
                for layer in range(self._num_layers):
                    place, array = buffer[part.name][layer], pool.state[part.name][layer, slot.index]
                    if part.name != "conv":
                        yield place, array
                        continue
                    for at, low, count in _runs(window):
                        yield place[at : at + count], array[low : low + count]
            if few and blocks:
                for name, all_blocks in pool.kv.items():
                    for layer in range(len(kv)):
                        yield buffer[name][layer], all_blocks[layer, blocks[0]]

        def finish(buffer: dict[str, Host], number: int, count: int) -> None:
            for layer in range(number, self._num_layers, count):
                for part in self._parts:
                    to = layers[layer][part.name]
                    _fill(part, to, buffer[part.name][layer], position)
                    to.setflags(write=False)
            for layer in range(number, len(kv), count):
                for name, to in zip(("keys", "values"), kv[layer], strict=True):
                    if few and blocks:
                        rows = block_rows(buffer[name][layer], config.head_dim, values=name == "values")
                        skipped = first % BLOCK_ROWS
                        to[...] = rows[skipped : skipped + len(to)]
                    to.setflags(write=False)

        return DeviceSnapshot(
            position,
            first,
            content_digest(slot.ids[:position], slot.positions(0, position)),
            layers,
            kv,
            self._staging.copy(launches, finish),
        )

    def put(self, slot: Slot, snapshot: DeviceSnapshot, table: tuple[int, ...]) -> None:
        assert isinstance(slot, DeviceSlot)
        position = snapshot.position
        put_state(self._pool, slot.index, position, snapshot.layers)
        upload_kv(self._pool, table, snapshot.first, snapshot.kv)
        slot.advance(position, position, position // CHUNK_ROWS * CHUNK_ROWS, table)
