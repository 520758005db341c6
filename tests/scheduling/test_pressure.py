"""The ladder: who gives way when blocks run out."""

from __future__ import annotations

import attrs
from hypothesis import given
from hypothesis import strategies as st

from luce.engines.seam import SegmentKind
from luce.scheduling.plan import plan
from luce.scheduling.state import Lane, LoopState, Park, Parked, ParkKind, Waiting
from tests.scheduling.pictures import lane, state


def full(slot: int, **more: object) -> Lane:
    """A decoding lane whose next row needs a block that it was not promised."""
    return lane(slot, 32, 20, last_row=100, covered_rows=32, **more)


def rows(s: LoopState) -> list[int]:
    return [g.slot for g in plan(s).segments]


def test_blocks_go_to_the_oldest_lanes_and_without_need_nobody_gives_way() -> None:
    lanes = (full(0, order=5), full(1, order=2), full(2, order=9, can_save=True))
    assert rows(state(*lanes, available_blocks=3)) == [0, 1, 2]
    assert plan(state(*lanes, available_blocks=2)).parks == (Park(2, ParkKind.SAVE),)


def test_the_newest_lane_gives_way_whoever_is_in_need() -> None:
    idle_newest = lane(2, 33, 20, last_row=100, covered_rows=48, order=9, can_save=True, can_drop=True)
    s = state(full(0, order=1, can_save=True), idle_newest, available_blocks=0)
    assert plan(s).parks == (Park(2, ParkKind.SAVE),)
    assert plan(s).segments == ()


def test_a_lane_that_does_not_fit_host_memory_is_dropped_and_one_that_can_do_neither_is_passed_over() -> None:
    image = full(3, order=9)
    s = state(full(0, order=1), full(1, order=2, can_drop=True), image, available_blocks=0)
    assert plan(s).parks == (Park(1, ParkKind.DROP),)


def test_a_lane_with_a_row_in_flight_sits_out_first() -> None:
    newest = lane(2, 33, 20, last_row=100, covered_rows=48, order=9, can_save=True, busy=True, in_flight=True)
    s = state(full(0), lane(1, 33, 20, last_row=100), newest, available_blocks=0)
    decision = plan(s)
    assert not decision.moves
    assert [g.slot for g in decision.segments] == [1], "neither the one in need nor the one that gives way"


def test_blocks_on_their_way_back_are_waited_for() -> None:
    lanes = (full(0), full(1, can_save=True))
    s = state(*lanes, available_blocks=1, returning_blocks=1)
    assert not plan(s).moves and rows(s) == [0]
    assert plan(attrs.evolve(s, returning_blocks=0)).parks == (Park(1, ParkKind.SAVE),)
    alone = state(full(0), available_blocks=0, returning_blocks=2)
    assert plan(alone).fails == () and rows(alone) == []


def test_only_when_nobody_can_be_parked_the_newest_in_need_fails() -> None:
    lanes = (full(0, order=7), full(1, order=3), lane(2, 33, 20, order=9))
    assert plan(state(*lanes, available_blocks=1)).fails == (0,)
    busy = state(full(0, busy=True), full(1), available_blocks=1)
    assert not plan(busy).moves, "a step in flight may end some request"


def test_the_last_lane_is_never_parked() -> None:
    s = state(full(0, can_save=True, can_drop=True), available_blocks=0)
    assert plan(s).parks == () and plan(s).fails == (0,)


def test_run_ahead_neither_parks_nor_fails() -> None:
    lanes = (full(0, in_flight=True), full(1, in_flight=True, can_save=True))
    s = state(*lanes, available_blocks=1, run_ahead=True)
    assert not plan(s).moves and rows(s) == [0]


def test_parked_requests_return_before_new_ones_and_with_headroom() -> None:
    grown = lane(0, 40, 20, last_row=100, covered_rows=48)
    s = state(
        grown,
        parked=(Parked(4, 3), Parked(6, 1)),
        waiting=(Waiting(8, 1),),
        free_slots=(2, 3),
        available_blocks=4,
    )
    assert [(r.key, r.slot) for r in plan(s).resumes] == [(4, 2)]
    tight = attrs.evolve(s, available_blocks=3)
    assert not plan(tight).moves, "one block stays for the lane that is there; nobody overtakes the parked"
    assert [r.key for r in plan(attrs.evolve(tight, lanes=())).resumes] == [4]
    promised = attrs.evolve(tight, lanes=(lane(0, 40, 20, last_row=47, covered_rows=48),))
    assert [r.key for r in plan(promised).resumes] == [4]


def test_a_grant_leaves_the_next_block_to_those_that_are_there() -> None:
    grown = lane(0, 40, 20, last_row=100, covered_rows=48)
    s = state(grown, waiting=(Waiting(8, 3),), free_slots=(1,), available_blocks=3)
    assert plan(s).grants == ()
    assert len(plan(attrs.evolve(s, available_blocks=4)).grants) == 1


def test_a_chunk_ends_where_the_state_is_to_be_captured() -> None:
    s = state(lane(0, 0, 20, cut_row=5), available_blocks=0)
    assert [(g.start, g.count, g.sample) for g in plan(s).segments] == [(0, 5, False)]


@st.composite
def worlds(draw: st.DrawFn) -> LoopState:
    lanes = []
    for slot in range(draw(st.integers(0, 5))):
        prompt = draw(st.integers(1, 40))
        next_row = draw(st.integers(0, 60))
        covered = draw(st.sampled_from([next_row, next_row + 1, next_row + 16]))
        lanes.append(
            lane(
                slot,
                next_row,
                prompt,
                order=draw(st.permutations(range(6)))[0] * 8 + slot,
                ready_rows=draw(st.integers(0, prompt)),
                last_row=max(prompt + 1, next_row) + draw(st.integers(0, 30)),
                covered_rows=max(covered, prompt),
                **{
                    name: draw(st.booleans())
                    for name in ("runnable", "in_flight", "busy", "can_save", "can_drop")
                },
            )
        )
    return state(
        *lanes,
        available_blocks=draw(st.integers(0, 4)),
        returning_blocks=draw(st.integers(0, 2)),
        parked=draw(st.sampled_from([(), (Parked(90, 2),)])),
        waiting=draw(st.sampled_from([(), (Waiting(99, 2),)])),
        free_slots=draw(st.sampled_from([(), (7,), (7, 8)])),
        run_ahead=draw(st.booleans()),
    )


@given(worlds())
def test_no_plan_overdraws_and_every_move_is_legal(s: LoopState) -> None:
    decision = plan(s)
    by_slot = {made.slot: made for made in s.lanes}
    if decision.moves:
        assert not decision.segments and not s.run_ahead
    growing = [
        g
        for g in decision.segments
        if g.kind is SegmentKind.DECODE and by_slot[g.slot].next_row >= by_slot[g.slot].covered_rows
    ]
    assert len(growing) <= s.available_blocks
    for park in decision.parks:
        victim = by_slot[park.slot]
        assert not victim.busy and len(s.lanes) > 1
        assert victim.can_save if park.kind is ParkKind.SAVE else victim.can_drop
        assert all(made.order <= victim.order for made in s.lanes if made.can_save or made.can_drop), (
            "the newest that can"
        )
    for resume in decision.resumes:
        assert resume.key == s.parked[0].key and s.parked[0].blocks <= s.available_blocks
    if decision.grants:
        assert not s.parked
    if decision.fails:
        assert not any(made.busy for made in s.lanes) and not s.returning_blocks


@given(worlds())
def test_something_happens_whenever_something_can(s: LoopState) -> None:
    """No plan is empty while a lane could decode, nothing is in flight and nothing is on its way back."""
    ready = [made for made in s.lanes if made.runnable and made.prompt_rows <= made.next_row < made.last_row]
    still = not s.returning_blocks and not s.run_ahead and not any(made.busy for made in s.lanes)
    decision = plan(s)
    if ready and still:
        assert decision.moves or decision.segments
