"""Policy: from a frozen state to the next step. Pure: no I/O, no clock, no engine.

Order of service (design §7): parked requests return before new ones are granted, both first in, first out, and none
that does not fit with what it is promised (those with pictures also between plans that launch rows, so that the encoder
begins at once); then one row for every decoding lane, under pressure as the ladder says (`pressure.py`); then prompt
chunks in arrival order up to the prefill budget, beside answers up to what measured times allow (`step_pace.py`),
without answers so that prompts which came together get their first tokens together (`gathering.py`), and few rows in
front of a picture along with it (`before_pictures.py`); then a slice of a staged pass (`staged_passes.py`). A request
that does not fit blocks those behind it, so nobody is overtaken (invariant I8).
"""

from __future__ import annotations

from luce.engines.seam import RowSource, Segment, SegmentKind
from luce.scheduling.before_pictures import rows_to_go
from luce.scheduling.gathering import gathered
from luce.scheduling.pressure import decode_growth, decode_lanes
from luce.scheduling.staged_passes import staged_segments
from luce.scheduling.state import Decision, Grant, Lane, LoopState, Resume
from luce.tuples import new_tuple

__all__ = ["plan"]

_DECODE, _LAST_SAMPLED, _PROMPT = SegmentKind.DECODE, RowSource.LAST_SAMPLED, RowSource.PROMPT
"""Finding a member of an enumeration takes a while, and this is needed for every lane."""


def plan(state: LoopState) -> Decision:
    """The next decision. Bounded by slots and lanes, whatever waits behind the queue's head.

    Returns:
        A decision that moves requests (the caller delivers it and plans again once they have answered), else the
        segments of the next step; empty when nothing can run.
    """
    if state.early:
        return Decision(grants=_early_grants(state))
    if not state.run_ahead:
        if state.parked:
            resumes = _resumes(state)
            if resumes:
                return Decision(resumes=resumes)
        elif state.admitting and state.waiting:
            grants = _grants(state)
            if grants:
                return Decision(grants=grants)
    decoding = decode_lanes(state)
    growth = decode_growth(state, decoding)
    if growth.park is not None:
        return Decision(parks=(growth.park,))
    if growth.fail is not None:
        return Decision(fails=(growth.fail,))
    segments = _decode_rows(decoding, growth.held_back)
    if not state.run_ahead:
        segments += _prompt_chunks(state, beside=bool(segments))
        if state.limits.passes is not None:
            segments += _staged_slice(state, alone=not segments)
    return Decision(segments=tuple(segments))


def _headroom(state: LoopState) -> int:
    """Blocks kept back for the lanes that are there, so that a newcomer does not push one out at once: the next
    block of every lane that will need one."""
    size = state.limits.block_size
    return sum(
        lane.covered_rows <= lane.last_row and lane.covered_rows <= lane.next_row + size
        for lane in state.lanes
    )


def _resumes(state: LoopState) -> tuple[Resume, ...]:
    """One at a time: the next one counts on what this one leaves."""
    head = state.parked[0]
    if not state.free_slots or head.blocks > state.available_blocks - _headroom(state):
        return ()
    return (Resume(head.key, state.free_slots[0]),)


def _grants(state: LoopState) -> tuple[Grant, ...]:
    available = state.available_blocks - _headroom(state)
    grants = []
    for waiting, slot in zip(state.waiting, state.free_slots, strict=False):
        if waiting.blocks > available:
            break
        available -= waiting.blocks
        grants.append(Grant(waiting.key, slot))
    return tuple(grants)


def _early_grants(state: LoopState) -> tuple[Grant, ...]:
    """Those that would be made now, up to the last request with a picture: the encoder need not wait for a plan that
    may launch rows. Text would gain nothing."""
    if state.parked or not state.admitting:
        return ()
    grants = _grants(state)
    shown = {waiting.key for waiting in state.waiting if waiting.pictures}
    while grants and grants[-1].key not in shown:
        grants = grants[:-1]
    return grants


def _decode_rows(decoding: list[Lane], held_back: frozenset[int]) -> list[Segment]:
    return [
        new_tuple(
            Segment,
            (
                lane.slot,
                _DECODE,
                lane.next_row,
                1,
                _LAST_SAMPLED if lane.next_row >= lane.prompt_rows else _PROMPT,
                True,
                None,
            ),
        )
        for lane in decoding
        if lane.slot not in held_back
    ]


def _prompt_chunks(state: LoopState, *, beside: bool) -> list[Segment]:
    """``beside``: the step has rows of answers, whose streams wait for it."""
    budget, least = state.limits.prefill_budget, state.limits.rows_before_picture
    if beside and state.rows_beside is not None:
        budget = state.rows_beside if budget is None else min(budget, state.rows_beside)
    chunks: list[Segment] = []
    prefilling = [lane for lane in state.lanes if lane.next_row < lane.prompt_rows and not lane.imported]
    for lane in sorted(prefilling, key=_arrival):
        if not lane.runnable:
            continue
        ready, prompt = lane.ready_rows, lane.prompt_rows
        end = min(rows_to_go(lane.next_row, ready, prompt, least), prompt)
        if lane.cut_row is not None:
            end = min(end, lane.cut_row)
        count = end - lane.next_row
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
    if state.gather_rows is None:
        return chunks
    return gathered(chunks, prefilling, state.gather_rows, state.cached_rows)


def _staged_slice(state: LoopState, *, alone: bool) -> tuple[Segment, ...]:
    """A slice takes long, and so may copies of staged prompts: they are not made in one step, so that streams pause for
    one of them at a time. ``alone``: nothing else is in the step."""
    if state.importing:
        return ()
    assert state.limits.passes is not None
    # One that sits this step out, or whose client stalls, may want to go on before a whole pass is over.
    alone = alone and all(lane.prefilling for lane in state.lanes)
    joining = [lane for lane in state.lanes if lane.staged is not None] if state.staged_pass is None else []
    ready = [(lane.slot, lane.next_row, lane.staged) for lane in sorted(joining, key=_arrival) if lane.staged]
    return staged_segments(state.staged_pass, ready, state.limits.passes, alone)


def _arrival(lane: Lane) -> int:
    return lane.order
