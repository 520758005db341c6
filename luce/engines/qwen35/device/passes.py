"""From the segments of a step to passes over the layers. Pure: nothing here touches a device.

Segments of one row go together into step passes, which run from captured graphs; all others into chunk passes, in the
plan's order. Every pass reads the whole model. So last rows of prompts that waited for others with them go along with
these in their chunk pass, where they cost nothing there. Which pass a row runs in never changes its bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import attrs

from luce.engines.qwen35.device.descriptors import CHUNK_ROWS, STEP_ROWS
from luce.engines.qwen35.device.slots import DeviceSlot
from luce.engines.seam import Mask, RowSource, Segment

__all__ = [
    "FEW_ROWS",
    "GRAPH_ROWS",
    "MANY_LANES",
    "Piece",
    "Work",
    "base_after",
    "committed",
    "piece_of",
    "plan_passes",
]

GRAPH_ROWS = 512
"""Chunk passes of up to so many rows, or multiples of it, are replayed from graphs."""
FEW_ROWS, MANY_LANES = 16, 8
"""Least rows that a chunk pass is launched with, and least lanes of one with more than one: so that what is recorded at
the start is what serving needs, whatever pieces its prompts are cut into. A kind that comes first while answers stream
holds them up until it is recorded."""
JOINING_KEYS = 4096
"""A row in a chunk pass goes through the keys before it one tile after the other. Of so many, or of as many as another
row of the pass, it does not become late."""


@attrs.define(eq=False)
class Work:
    """One segment on its way through the step."""

    index: int
    """Its place in the plan."""
    segment: Segment
    slot: DeviceSlot
    table: tuple[int, ...]
    mask: Mask | None


@attrs.frozen(eq=False)
class Piece:
    """Rows of one segment in one pass."""

    work: Work
    start: int
    count: int
    base: int
    """Where the slot's S stands before the pass, and ``base_after`` afterwards."""
    base_after: int
    last: bool
    """The segment's last rows are among them."""

    @property
    def end(self) -> int:
        return self.start + self.count


def committed(start: int, count: int) -> int:
    """Rows before this position are final once ``count`` rows from ``start`` have run (as :attr:`Segment.commits`)."""
    return start if count <= CHUNK_ROWS else max(start, (start + count - 1) // CHUNK_ROWS * CHUNK_ROWS)


def base_after(start: int, count: int) -> int:
    """The multiple of 64 at which S stands once ``count`` rows from ``start`` have run."""
    return committed(start, count) // CHUNK_ROWS * CHUNK_ROWS


def plan_passes(works: Iterable[Work], max_rows: int, max_lanes: int) -> Iterator[tuple[bool, list[Piece]]]:
    """(is it a step pass?, its pieces), in the order to run. Moves the slots on.

    Args:
        max_rows: of a chunk pass, at least 64. Segments of more than 64 rows may be cut, at multiples of 64.
        max_lanes: of a chunk pass.
    """
    assert max_rows >= CHUNK_ROWS
    works = list(works)
    single = [work for work in works if work.segment.count == 1]
    chunks = list(_chunks([work for work in works if work.segment.count > 1], max_rows, max_lanes))
    if chunks and single and _join(single, chunks[-1], max_rows, max_lanes):
        chunks[-1] += [piece_of(work, work.segment.start, 1) for work in single]
        single = []
    for first in range(0, len(single), STEP_ROWS):
        yield True, [piece_of(work, work.segment.start, 1) for work in single[first : first + STEP_ROWS]]
    for pieces in chunks:
        yield False, pieces


def _join(single: list[Work], pieces: list[Piece], max_rows: int, max_lanes: int) -> bool:
    """Do the rows of segments of one row cost nothing in a chunk pass? Not where it would have more tiles with them, or
    be a graph of a kind that is not there from the start. Rows of answers have their step pass."""
    rows = sum(piece.count for piece in pieces)
    after, lanes = rows + len(single), len(pieces) + len(single)
    keys = max(JOINING_KEYS, max(piece.end for piece in pieces))
    if any(work.segment.source is not RowSource.PROMPT or work.segment.start >= keys for work in single):
        return False
    if after > max_rows or lanes > (max_lanes if after > GRAPH_ROWS else min(max_lanes, MANY_LANES)):
        return False
    if after > GRAPH_ROWS and not after % GRAPH_ROWS:
        return False
    return after <= FEW_ROWS or (rows > FEW_ROWS and -(-after // CHUNK_ROWS) == -(-rows // CHUNK_ROWS))


def _chunks(works: list[Work], max_rows: int, max_lanes: int) -> Iterator[list[Piece]]:
    """Chunk passes of segments of several rows."""
    pieces: list[Piece] = []
    rows = 0
    for work in works:
        at, end = work.segment.start, work.segment.start + work.segment.count
        while at < end:
            count = _fitting(at, end, max_rows - rows) if len(pieces) < max_lanes else 0
            if work.segment.count <= CHUNK_ROWS and count < end - at:
                count = 0  # a cut would commit its first part
            if not count:
                yield pieces
                pieces, rows = [], 0
                continue
            pieces.append(piece_of(work, at, count))
            rows += count
            at += count
    if pieces:
        yield pieces


def _fitting(start: int, end: int, room: int) -> int:
    """Rows from ``start`` that go into a pass with ``room`` more: all, or up to a multiple of 64, or none."""
    if end - start <= room:
        return end - start
    return max((start + room) // CHUNK_ROWS * CHUNK_ROWS - start, 0)


def piece_of(work: Work, start: int, count: int) -> Piece:
    """``count`` rows of ``work`` from ``start``, the slot's next; moves the slot on."""
    slot = work.slot
    after = base_after(start, count)
    piece = Piece(
        work, start, count, slot.base, after, start + count == work.segment.start + work.segment.count
    )
    slot.advance(committed(start, count), start + count, after, work.table)
    return piece
