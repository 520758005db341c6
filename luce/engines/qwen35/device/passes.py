"""From the segments of a step to passes over the layers. Pure: nothing here touches a device.

Segments of one row go together into step passes, which run from captured graphs; all others into chunk passes, in the
plan's order. Which pass a row runs in never changes its bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import attrs

from luce.engines.qwen35.device.descriptors import CHUNK_ROWS, STEP_ROWS
from luce.engines.qwen35.device.slots import DeviceSlot
from luce.engines.seam import Mask, Segment

__all__ = ["Piece", "Work", "base_after", "committed", "piece_of", "plan_passes"]


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
    """(is it a step pass?, its pieces), in the order to run. Moves the slots on as the pieces are given out.

    Args:
        max_rows: of a chunk pass, at least 64. Segments of more than 64 rows may be cut, at multiples of 64.
        max_lanes: of a chunk pass.
    """
    assert max_rows >= CHUNK_ROWS
    works = list(works)
    single = [work for work in works if work.segment.count == 1]
    for first in range(0, len(single), STEP_ROWS):
        yield True, [piece_of(work, work.segment.start, 1) for work in single[first : first + STEP_ROWS]]
    pieces: list[Piece] = []
    rows = 0
    for work in works:
        at, end = work.segment.start, work.segment.start + work.segment.count
        if work.segment.count == 1:
            continue
        while at < end:
            count = _fitting(at, end, max_rows - rows) if len(pieces) < max_lanes else 0
            if work.segment.count <= CHUNK_ROWS and count < end - at:
                count = 0  # a cut would commit its first part
            if not count:
                yield False, pieces
                pieces, rows = [], 0
                continue
            pieces.append(piece_of(work, at, count))
            rows += count
            at += count
    if pieces:
        yield False, pieces


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
