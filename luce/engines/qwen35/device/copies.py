"""Copies of a slot's state in host memory: saved slots and prefix snapshots (design §6).

A copy has one form, whatever way the slot came to its rows: rings and windows hold exact zeros in the place of rows
that are not there. So two copies at the same position of the same content are equal bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt

from luce.engines.digest import content_digest
from luce.engines.qwen35.device.descriptors import BLOCK_ROWS, CHUNK_ROWS, CONV_ROWS, RING_ROWS
from luce.engines.qwen35.device.layouts import CONV_TAPS, StatePart, block_rows, rows_block, state_parts
from luce.engines.qwen35.device.pool import DevicePool
from luce.engines.qwen35.device.slots import DeviceSlot
from luce.engines.qwen35.slots import Slot

__all__ = [
    "DeviceCopies",
    "DeviceSnapshot",
    "conv_window",
    "download_kv",
    "put_state",
    "take_state",
    "upload_kv",
]

Host = npt.NDArray[Any]


@attrs.frozen(eq=False)
class DeviceSnapshot:
    """State after exactly ``position`` tokens, in host memory and read-only."""

    position: int
    first: int
    """First position whose keys and values are here; those before it stand in shared blocks."""
    digest: bytes
    """Of the token ids and M-RoPE positions of the ``position`` rows."""
    layers: tuple[dict[str, Host], ...]
    """Per DeltaNet layer the parts of :func:`.layouts.state_parts` by name: S, the ring rows of the 64-chunk that
    ``position`` lies in, and the 3 rows before convolution."""
    kv: tuple[tuple[Host, Host], ...]
    """Per attention layer keys and values [position - first, Hkv, D], bfloat16 bits."""

    def arrays(self) -> Iterator[Host]:
        for layer in self.layers:
            yield from layer.values()
        for pair in self.kv:
            yield from pair

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.arrays())


def conv_window(position: int) -> npt.NDArray[np.intp]:
    """Places of the 3 rows that the convolution of row ``position`` reads before it."""
    places: npt.NDArray[np.intp] = np.arange(position - CONV_TAPS, position) % CONV_ROWS
    return places


def take_state(pool: DevicePool, slot: int, position: int) -> tuple[dict[str, Host], ...]:
    """The state of ``slot``, whose S stands at the last multiple of 64 up to ``position``."""
    parts = state_parts(pool.config)
    layers = pool.state["s"].shape[0]
    return tuple(
        {
            part.name: _take(part, pool.device.numpy(pool.state[part.name][layer, slot]), position)
            for part in parts
        }
        for layer in range(layers)
    )


def _take(part: StatePart, whole: Host, position: int) -> Host:
    base = position // CHUNK_ROWS * CHUNK_ROWS
    if part.axis is None:
        return whole if base else np.zeros_like(whole)
    if part.name == "conv":
        rows = whole[conv_window(position)]
        rows[: max(CONV_TAPS - position, 0)] = 0
        return rows
    ring = np.take(whole, np.arange(base, base + CHUNK_ROWS) % RING_ROWS, axis=part.axis)
    np.moveaxis(ring, part.axis, 0)[position - base :] = 0
    return ring


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
    """:class:`luce.engines.qwen35.stored_states.Copies` of a device's pool. Waits for the device."""

    def __init__(self, pool: DevicePool, commit: Callable[[DeviceSlot, int], None]) -> None:
        """``commit(slot, position)``: see :meth:`commit`."""
        self._pool, self._commit = pool, commit

    def commit(self, slot: Slot, position: int) -> None:
        assert isinstance(slot, DeviceSlot) and slot.start <= position <= slot.high
        self._commit(slot, position)

    def take(self, slot: Slot, first: int) -> DeviceSnapshot:
        position = slot.start
        assert slot.base == position // CHUNK_ROWS * CHUNK_ROWS and 0 <= first <= position
        snapshot = DeviceSnapshot(
            position=position,
            first=first,
            digest=content_digest(slot.ids[:position], slot.positions(0, position)),
            layers=take_state(self._pool, slot.index, position),
            kv=download_kv(self._pool, slot.table, first, position),
        )
        for array in snapshot.arrays():
            array.setflags(write=False)
        return snapshot

    def put(self, slot: Slot, snapshot: DeviceSnapshot, table: tuple[int, ...]) -> None:
        assert isinstance(slot, DeviceSlot)
        position = snapshot.position
        put_state(self._pool, slot.index, position, snapshot.layers)
        upload_kv(self._pool, table, snapshot.first, snapshot.kv)
        slot.advance(position, position, position // CHUNK_ROWS * CHUNK_ROWS, table)
