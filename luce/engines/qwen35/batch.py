"""One pass over the layers: the rows of several slots in one ragged batch, with every index the layers need.

All indices are made once per pass and shared by the layers. Nothing here decides arithmetic: which rows stand beside
each other, and where, never changes a row's bits.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import attrs
import numpy as np
import numpy.typing as npt

from luce.engines.qwen35.config import TextConfig
from luce.engines.qwen35.rope import RopeTable
from luce.engines.qwen35.state import CHUNK, CONV_ROWS, MAX_LANE_ROWS, RING, StatePool

__all__ = ["SPLIT", "Batch", "ChunkRows", "Lane", "SplitRun"]

F32 = npt.NDArray[np.float32]
Ints = npt.NDArray[np.intp]

SPLIT = 64
"""Keys in an attention split; splits start at absolute multiples of it. Blocks of 64 tokens (or multiples) are read
in place; smaller ones are gathered."""


@attrs.frozen
class Lane:
    """Rows ``start`` … ``start + count`` - 1 of one slot in a pass."""

    slot: int
    start: int
    count: int
    base: int
    """Start of the slot's committed chunk before this pass."""
    table: tuple[int, ...]
    """Blocks that cover positions up to the end."""

    @property
    def end(self) -> int:
        return self.start + self.count


@attrs.frozen(eq=False)
class ChunkRows:
    """The rows of one lane that lie in one 64-chunk."""

    slot: int
    chunk: int
    """Absolute start of the chunk."""
    row: int
    """First row in the batch."""
    first: int
    """Its place in the chunk."""
    count: int


@attrs.frozen(eq=False)
class SplitRun:
    """Consecutive splits whose keys stand in one piece in the pool, or a single split to be gathered."""

    first: int
    stop: int
    at: int
    """Pool row of the first key; -1: gather."""
    pieces: tuple[tuple[int, int, int], ...] = ()
    """To gather: (row in the split, pool row, rows); the rest of the split is exact zeros."""


@attrs.frozen(eq=False)
class AttentionLane:
    row: int
    count: int
    splits: int
    runs: tuple[SplitRun, ...]
    masked_from: int
    """First key that some row must not see; a multiple of SPLIT, or the end for a single row."""
    mask: npt.NDArray[np.bool_] | None
    """[count, splits · SPLIT - masked_from], True where the key is hidden; None for a single row."""


def _block_runs(table: Sequence[int], block_size: int, first: int, end: int) -> list[tuple[int, int, int]]:
    """(position, pool row, rows) of the pieces of ``first`` … ``end`` - 1 that are contiguous in the pool."""
    runs: list[tuple[int, int, int]] = []
    position = first
    while position < end:
        inside = position % block_size
        size = min(block_size - inside, end - position)
        at = table[position // block_size] * block_size + inside
        if runs and runs[-1][1] + runs[-1][2] == at:
            runs[-1] = (runs[-1][0], runs[-1][1], runs[-1][2] + size)
        else:
            runs.append((position, at, size))
        position += size
    return runs


@functools.lru_cache(maxsize=1024)
def split_runs(table: tuple[int, ...], block_size: int, splits: int) -> tuple[SplitRun, ...]:
    """Where the keys of whole splits 0 … ``splits`` - 1 stand, in ascending order."""
    found: list[SplitRun] = []
    for split in range(splits):
        parts = _block_runs(table, block_size, split * SPLIT, (split + 1) * SPLIT)
        at, last = parts[0][1], found[-1] if found else None
        if len(parts) > 1:
            gather = tuple((position - split * SPLIT, row, rows) for position, row, rows in parts)
            found.append(SplitRun(split, split + 1, -1, gather))
        elif last is not None and last.at >= 0 and last.at + (split - last.first) * SPLIT == at:
            found[-1] = SplitRun(last.first, split + 1, last.at)
        else:
            found.append(SplitRun(split, split + 1, at))
    return tuple(found)


def _lane_runs(lane: Lane, block_size: int) -> tuple[SplitRun, ...]:
    """Runs of all splits of a lane. The last split may be part full: where blocks hold whole splits its missing
    rows are the block's own (cleared when the slot got it), else it is gathered."""
    whole, rest = divmod(lane.end, SPLIT)
    if block_size % SPLIT == 0:
        splits = whole + (rest > 0)
        return split_runs(lane.table[: -(-lane.end // block_size)], block_size, splits)
    runs = split_runs(lane.table[: -(-whole * SPLIT // block_size)], block_size, whole)
    if not rest:
        return runs
    parts = _block_runs(lane.table, block_size, whole * SPLIT, lane.end)
    gather = tuple((position - whole * SPLIT, row, rows) for position, row, rows in parts)
    return (*runs, SplitRun(whole, whole + 1, -1, gather))


def _attention_lane(lane: Lane, row: int, block_size: int) -> AttentionLane:
    splits = -(-lane.end // SPLIT)
    mask, masked_from = None, lane.end
    if lane.count > 1:
        masked_from = lane.start // SPLIT * SPLIT
        keys = np.arange(masked_from, splits * SPLIT)
        mask = keys > np.arange(lane.start, lane.end)[:, None]
    runs = _lane_runs(lane, block_size)
    return AttentionLane(row, lane.count, splits, runs, masked_from, mask)


class Batch:
    """Indices of one pass.

    Args:
        lanes: at most one per slot, each of at most MAX_LANE_ROWS rows that follow on the slot's state.
        positions: M-RoPE positions [3, R] of all rows, lane after lane.
    """

    def __init__(
        self,
        lanes: Sequence[Lane],
        positions: npt.NDArray[np.integer],
        config: TextConfig,
        pool: StatePool,
        rope: RopeTable,
    ) -> None:
        assert all(0 < lane.count <= MAX_LANE_ROWS for lane in lanes)
        assert len({lane.slot for lane in lanes}) == len(lanes)
        self.lanes = tuple(lanes)
        counts = [lane.count for lane in lanes]
        self.rows = sum(counts)
        first_rows = np.cumsum([0, *counts])
        self.first_row = [int(row) for row in first_rows[:-1]]
        if self.rows == len(lanes):
            t = np.array([lane.start for lane in lanes])
        else:
            t = np.concatenate([np.arange(lane.start, lane.end) for lane in lanes])
        slots = np.repeat([lane.slot for lane in lanes], counts)
        self.cos, self.sin = rope.rows(positions)
        self._deltanet(t, slots, config.value_heads)
        self.attention = [
            _attention_lane(lane, row, pool.block_size)
            for lane, row in zip(lanes, self.first_row, strict=True)
        ]
        size = pool.block_size
        blocks = np.concatenate(
            [np.asarray(lane.table)[np.arange(lane.start, lane.end) // size] for lane in lanes]
        )
        self.kv_rows: Ints = blocks * size + t % size
        """Pool row [R] of each row's key and value."""

    def _deltanet(self, t: Ints, slots: Ints, heads: int) -> None:
        place = t % CHUNK
        self.place: Ints = place
        """Row's place in its 64-chunk [R]."""
        self.conv_write: Ints = slots * CONV_ROWS + t % CONV_ROWS
        taps = (t + np.arange(-3, 1)[:, None]) % CONV_ROWS
        self.conv_read: Ints = (slots * CONV_ROWS + taps).ravel()
        """[4 · R], oldest tap first."""
        head = (slots[:, None] * heads + np.arange(heads)) * RING
        self.g_write: Ints = head + (t % RING)[:, None]
        chunk = (t - place) % RING
        self.g_read: Ints = (head + chunk[:, None])[:, :, None] + np.arange(CHUNK)
        """[R, Hv, 64]."""
        self.hidden = (np.arange(CHUNK) > place[:, None])[:, None]
        """[R, 1, 64], True for chunk rows after the row itself."""
        self.arange: Ints = np.arange(len(t))
        self.folds: list[tuple[int, int]] = []
        """(slot, chunk) of every chunk that this pass's start positions commit."""
        self.chunks: list[ChunkRows] = []
        """Rows that read the committed state."""
        self.provisional: list[ChunkRows] = []
        """Rows past an uncommitted boundary; they come after the ones before it."""
        for lane, row in zip(self.lanes, self.first_row, strict=True):
            base = lane.base
            if lane.start - base >= CHUNK:
                self.folds.append((lane.slot, base))
                base += CHUNK
            assert 0 <= lane.start - base < CHUNK
            inside = min(lane.count, base + CHUNK - lane.start)
            self.chunks.append(ChunkRows(lane.slot, base, row, lane.start - base, inside))
            if inside < lane.count:
                self.provisional.append(
                    ChunkRows(lane.slot, base + CHUNK, row + inside, 0, lane.count - inside)
                )
        every = [*self.chunks, *self.provisional]
        starts = np.array([part.row for part in every])
        self.g_starts: Ints = starts
        self.g_before: Ints = head[starts] + ((t[starts] - 1) % RING)[:, None]
        """[parts, Hv]: where the sum of log decays before each part stands."""
        self.g_carry = (place[starts] > 0)[:, None]
        """False where a chunk begins: its sum starts from zero."""
        self.g_runs = [(part.row, part.row + part.count) for part in every if part.count > 1]
