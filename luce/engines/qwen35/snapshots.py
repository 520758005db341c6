"""Copies of a sequence's state in host memory: what prefix snapshots and saved slots are made of (design §6).

A copy has one form, whatever way the slot came to its rows: S at the last multiple of 64, the ring rows after it with
exact zeros in the place of rows that are not there yet, the 3 rows before the convolution, and keys and values of some
positions. So two copies at the same position of the same content are equal bit for bit, and a slot that takes one in
goes on exactly as one that has computed all of it.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs
import numpy as np
import numpy.typing as npt

from luce.engines.digest import content_digest
from luce.engines.qwen35.deltanet import commit_chunk
from luce.engines.qwen35.slots import Slot
from luce.engines.qwen35.state import CHUNK, CONV_ROWS, DeltaNetState, KvLayer, StatePool

__all__ = ["LayerCopy", "PoolCopies", "Snapshot", "commit", "put", "take"]

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]

CONV_TAPS = 3
"""Rows before convolution that a next row reads."""


@attrs.frozen(eq=False)
class LayerCopy:
    """One DeltaNet layer after exactly ``position`` tokens."""

    s: F32
    """[Hk, r, Dk, Dv], S at the last multiple of 64 up to ``position``."""
    k: F32
    """[Hk, 64, Dk], rows of the 64-chunk from there on; zeros from ``position`` on, as in ``u`` and ``g``."""
    u: F32
    """[Hk, r, 64, Dv]."""
    g: F64
    """[Hv, 64]."""
    conv: F32
    """[3, channels], the rows ``position`` - 3 … ``position`` - 1; zeros before row 0."""


@attrs.frozen(eq=False)
class Snapshot:
    """State after exactly ``position`` tokens. Its arrays are its own and read-only."""

    position: int
    first: int
    """First position whose keys and values are here; those before it stand in shared blocks."""
    digest: bytes
    """Of the token ids and M-RoPE positions of the ``position`` rows."""
    layers: tuple[LayerCopy, ...]
    kv: tuple[KvLayer, ...]
    """Per attention layer [position - first, Hkv, D]."""

    def arrays(self) -> Iterator[F32 | F64]:
        for layer in self.layers:
            yield from (layer.s, layer.k, layer.u, layer.g, layer.conv)
        for kv in self.kv:
            yield from (kv.k, kv.v)

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.arrays())


def commit(pool: StatePool, slot: Slot, position: int) -> None:
    """Make the rows before ``position`` of ``slot`` final, as a segment that starts there would."""
    assert slot.start <= position <= slot.high
    if position - slot.base >= CHUNK:
        for layer in pool.deltanet:
            commit_chunk(layer, slot.index, slot.base)
        slot.base += CHUNK
    slot.start = position


def take(pool: StatePool, slot: Slot, first: int) -> Snapshot:
    """The state of ``slot`` where it is committed, with keys and values from position ``first`` on.

    Raises:
        MemoryError: there is no memory for it.
    """
    position = slot.start
    assert slot.base == position // CHUNK * CHUNK and 0 <= first <= position
    rows = pool.rows_at(slot.table, first, position)
    snapshot = Snapshot(
        position=position,
        first=first,
        digest=content_digest(slot.ids[:position], slot.positions(0, position)),
        layers=tuple(_take_layer(layer, slot, position) for layer in pool.deltanet),
        kv=tuple(KvLayer(layer.k[rows], layer.v[rows]) for layer in pool.kv),
    )
    for array in snapshot.arrays():
        array.setflags(write=False)
    return snapshot


def _take_layer(layer: DeltaNetState, slot: Slot, position: int) -> LayerCopy:
    void = position - slot.base
    ring_k, ring_u, ring_g = layer.chunk(slot.index, slot.base)
    k, u, g = ring_k.copy(), ring_u.copy(), ring_g.copy()
    k[:, void:] = 0.0
    u[:, :, void:] = 0.0
    g[:, void:] = 0.0
    return LayerCopy(layer.s[slot.index].copy(), k, u, g, layer.conv[slot.index][_window(position)])


def _window(position: int) -> npt.NDArray[np.intp]:
    """Places of the 3 rows that the convolution of row ``position`` reads before it."""
    places: npt.NDArray[np.intp] = np.arange(position - CONV_TAPS, position) % CONV_ROWS
    return places


def put(pool: StatePool, slot: Slot, snapshot: Snapshot, table: tuple[int, ...]) -> None:
    """Make the empty ``slot`` one that has computed ``snapshot.position`` rows, with ``table`` as its blocks.

    Keys and values that the snapshot holds go into the blocks; those before ``snapshot.first`` are there already.
    """
    position, index = snapshot.position, slot.index
    base = position // CHUNK * CHUNK
    rows = pool.rows_at(table, snapshot.first, position)
    pool.clear(index)
    for layer, copy in zip(pool.deltanet, snapshot.layers, strict=True):
        layer.s[index] = copy.s
        k, u, g = layer.chunk(index, base)
        k[...], u[...], g[...] = copy.k, copy.u, copy.g
        layer.conv[index][_window(position)] = copy.conv
    for kv, stored_kv in zip(pool.kv, snapshot.kv, strict=True):
        kv.k[rows] = stored_kv.k
        kv.v[rows] = stored_kv.v
    slot.base, slot.start, slot.high, slot.table = base, position, position, table


@attrs.frozen
class PoolCopies:
    """:class:`luce.engines.qwen35.stored_states.Copies` of a pool in host memory."""

    pool: StatePool

    def commit(self, slot: Slot, position: int) -> None:
        commit(self.pool, slot, position)

    def take(self, slot: Slot, first: int) -> Snapshot:
        return take(self.pool, slot, first)

    def put(self, slot: Slot, snapshot: Snapshot, table: tuple[int, ...]) -> None:
        put(self.pool, slot, snapshot, table)
