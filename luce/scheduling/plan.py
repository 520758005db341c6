"""Policy: from a frozen state to the next step. Pure: no I/O, no clock, no engine.

Order of service (design §7): grants first in, first out, none that does not fit with everything it may grow to;
then one row for every decoding lane; then prompt chunks in arrival order up to the prefill budget. A request that
cannot be granted blocks those behind it, so nobody is overtaken (invariant I8).

Parking, the prefix cache and staged passes have their places in this order (resume before grant, ladder before
decode rows, passes after them) and come with the pressure ladder.
"""

from __future__ import annotations

from luce.engines.seam import RowSource, Segment, SegmentKind
from luce.scheduling.blocks import blocks_for
from luce.scheduling.state import Decision, Grant, Lane, LoopState

__all__ = ["plan"]


def plan(state: LoopState) -> Decision:
    """The next decision. Bounded by slots and lanes, whatever waits behind the queue's head.

    Returns:
        Grants alone (the caller delivers them and plans again once their requests have answered), else the
        segments of the next step; both empty when nothing can run.
    """
    grants = _grants(state)
    if grants:
        return Decision(grants=grants)
    segments = _decode_rows(state)
    if not state.run_ahead:
        segments += _prompt_chunks(state)
    return Decision(segments=tuple(segments))


def _grants(state: LoopState) -> tuple[Grant, ...]:
    if not state.admitting or state.run_ahead:
        return ()
    available = state.available_blocks
    grants = []
    for waiting, slot in zip(state.waiting, state.free_slots, strict=False):
        need = blocks_for(waiting.rows, state.limits.block_size)
        if need > available:
            break
        available -= need
        grants.append(Grant(waiting.key, slot))
    return tuple(grants)


def _decode_rows(state: LoopState) -> list[Segment]:
    return [
        Segment(lane.slot, SegmentKind.DECODE, lane.next_row, 1, RowSource.LAST_SAMPLED, sample=True)
        for lane in state.lanes
        if lane.runnable
        and lane.next_row >= lane.prompt_rows
        and lane.next_row < lane.last_row
        and (lane.in_flight or not state.run_ahead)
    ]


def _prompt_chunks(state: LoopState) -> list[Segment]:
    budget = state.limits.prefill_budget
    chunks: list[Segment] = []
    prefilling = [lane for lane in state.lanes if lane.runnable and lane.prefilling]
    for lane in sorted(prefilling, key=_arrival):
        count = min(lane.ready_rows, lane.prompt_rows) - lane.next_row
        if budget is not None:
            count = min(count, budget)
        if count <= 0:
            continue
        last = lane.next_row + count == lane.prompt_rows
        chunks.append(
            Segment(lane.slot, SegmentKind.PREFILL, lane.next_row, count, RowSource.PROMPT, sample=last)
        )
        if budget is not None:
            budget -= count
            if budget == 0:
                break
    return chunks


def _arrival(lane: Lane) -> int:
    return lane.order
