"""Which copies of states a step launches behind its rows.

Copies take the host a part of a millisecond each, in which the device has nothing to do where they are launched first;
and a copy waits for the bus where more are on their way than there is room for. Behind the rows both cost nothing, or
the step after that. What is copied is the same: a slot without rows in the step is as it was, and of one that goes on
behind the copied position only what a copy does not keep is written, as long as its rows stay in the 64-chunk of that
position: S stands where it stood, and rings and windows have room for :data:`MAX_VOID_ROWS` rows past it.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from luce.engines.qwen35.device.descriptors import CHUNK_ROWS
from luce.engines.qwen35.device.passes import base_after
from luce.engines.qwen35.slots import Slot
from luce.engines.seam import MAX_VOID_ROWS, Segment, SlotWork, StepPlan, WorkKind

__all__ = ["FILLS", "behind_rows"]

FILLS = frozenset({WorkKind.RESTORE, WorkKind.ADOPT})
"""Work that fills a slot."""


def behind_rows(plan: StepPlan, slots: Mapping[int, Slot]) -> frozenset[int]:
    """Places of the plan's items that are done behind its rows; all others are done first.

    Args:
        slots: as they are before the step.
    """
    segments = {segment.slot: segment for segment in plan.segments}
    wanted = {item.handle for item in plan.work if item.kind in FILLS}
    by_slot: dict[int, list[int]] = {}
    for at, item in enumerate(plan.work):
        by_slot.setdefault(item.slot, []).append(at)
    found: set[int] = set()
    for index, places in by_slot.items():
        items = [plan.work[at] for at in places]
        made_for_others = any(item.kind not in FILLS and item.handle in wanted for item in items)
        if not made_for_others and _follow(items, segments.get(index), slots.get(index)):
            found.update(places)
    return frozenset(found)


def _follow(items: list[SlotWork], segment: Segment | None, slot: Slot | None) -> bool:
    """May all that is done with a slot be done behind its rows?"""
    kinds = {item.kind for item in items}
    if segment is None:
        return kinds <= FILLS or kinds == {WorkKind.CAPTURE}
    if kinds != {WorkKind.CAPTURE} or slot is None or slot.failed is not None:
        return False
    positions = [item.position for item in items]
    if positions[0] < 1 or not positions[-1] <= min(slot.high, segment.start):
        return False
    base, end = slot.base, segment.start + segment.count
    return (
        all(before <= after for before, after in pairwise(positions))
        and end - positions[0] <= MAX_VOID_ROWS
        and base_after(segment.start, segment.count) == base
        and all(position // CHUNK_ROWS * CHUNK_ROWS == base for position in positions)
    )
