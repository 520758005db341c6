from __future__ import annotations

import attrs
from hypothesis import given
from hypothesis import strategies as st

from luce.engines.seam import RowSource, SegmentKind
from luce.scheduling.plan import plan
from luce.scheduling.state import Lane, LoopState, Waiting
from tests.scheduling.pictures import LIMITS, lane, state


def shape(s: LoopState) -> list[tuple[int, str, int, int, bool]]:
    return [(g.slot, g.kind.value, g.start, g.count, g.sample) for g in plan(s).segments]


def test_nothing_to_do_is_an_empty_decision() -> None:
    decision = plan(state())
    assert decision.grants == () and decision.segments == ()


def test_decode_rows_come_first_and_cost_no_prefill_budget() -> None:
    lanes = (lane(0, 0, 20), lane(1, 20, 20), lane(2, 23, 20))
    assert shape(state(*lanes)) == [
        (1, "decode", 20, 1, True),
        (2, "decode", 23, 1, True),
        (0, "prefill", 0, 8, False),
    ]


def test_prompts_share_the_budget_in_arrival_order_and_the_last_chunk_samples() -> None:
    lanes = (lane(0, 0, 5, order=9), lane(1, 10, 14, order=3), lane(2, 0, 30, order=7))
    assert shape(state(*lanes)) == [(1, "prefill", 10, 4, True), (2, "prefill", 0, 4, False)]


def test_a_chunk_ends_before_a_picture_that_is_not_encoded() -> None:
    assert shape(state(lane(0, 0, 20, ready_rows=3))) == [(0, "prefill", 0, 3, False)]
    assert shape(state(lane(0, 3, 20, ready_rows=3))) == []


def test_no_budget_means_whole_prompts() -> None:
    limits = attrs.evolve(LIMITS, prefill_budget=None)
    assert shape(state(lane(0, 0, 200), lane(1, 0, 100), limits=limits)) == [
        (0, "prefill", 0, 200, True),
        (1, "prefill", 0, 100, True),
    ]


def test_the_last_token_is_never_fed_back() -> None:
    assert shape(state(lane(0, 29, 20, last_row=30))) == [(0, "decode", 29, 1, True)]
    assert shape(state(lane(0, 30, 20, last_row=30))) == []


def test_lanes_that_may_not_run_get_no_rows() -> None:
    assert shape(state(lane(0, 0, 20, runnable=False), lane(1, 25, 20, runnable=False))) == []


def test_run_ahead_only_continues_rows_in_flight() -> None:
    lanes = (lane(0, 20, 20, in_flight=True), lane(1, 20, 20), lane(2, 0, 20, in_flight=True))
    s = state(*lanes, run_ahead=True, waiting=(Waiting(5, 1),), free_slots=(3,))
    decision = plan(s)
    assert decision.grants == ()
    assert [(g.slot, g.kind, g.source) for g in decision.segments] == [
        (0, SegmentKind.DECODE, RowSource.LAST_SAMPLED)
    ]


def test_grants_are_first_in_first_out_and_nobody_overtakes_one_that_does_not_fit() -> None:
    waiting = (Waiting(1, 2), Waiting(2, 4), Waiting(3, 1))
    s = state(waiting=waiting, free_slots=(0, 1, 2), available_blocks=5)
    assert [(g.key, g.slot) for g in plan(s).grants] == [(1, 0)]
    s = attrs.evolve(s, available_blocks=7)
    assert [(g.key, g.slot) for g in plan(s).grants] == [(1, 0), (2, 1), (3, 2)]


lanes_strategy = st.lists(
    st.builds(
        lambda slot, prompt, done, ready, extra, runnable, flying: lane(
            slot,
            done % (prompt + extra),
            prompt,
            ready_rows=min(ready, prompt),
            last_row=prompt + extra,
            runnable=runnable,
            in_flight=flying,
        ),
        st.integers(0, 50),
        st.integers(1, 40),
        st.integers(0, 100),
        st.integers(0, 40),
        st.integers(1, 10),
        st.booleans(),
        st.booleans(),
    ),
    max_size=6,
    unique_by=lambda made: made.slot,
)


@given(lanes_strategy, st.sampled_from([1, 7, 64, None]), st.booleans())
def test_every_plan_is_sound(lanes: list[Lane], budget: int | None, ahead: bool) -> None:
    s = state(*lanes, limits=attrs.evolve(LIMITS, prefill_budget=budget), run_ahead=ahead)
    segments = plan(s).segments
    by_slot = {made.slot: made for made in lanes}
    assert len({g.slot for g in segments}) == len(segments), "one segment a lane"
    for g in segments:
        made = by_slot[g.slot]
        assert made.runnable and g.start == made.next_row and g.count >= 1
        end = g.start + g.count
        if g.kind is SegmentKind.PREFILL:
            assert end <= min(made.ready_rows, made.prompt_rows)
            assert g.sample == (end == made.prompt_rows)
        else:
            assert end <= made.last_row and g.sample
    rows = sum(g.count for g in segments if g.kind is SegmentKind.PREFILL)
    assert budget is None or rows <= budget
    could = [m for m in lanes if m.runnable and m.next_row < m.prompt_rows and m.ready_rows > m.next_row]
    if could and not ahead:
        assert rows > 0, "never an empty plan while a prompt can go on"
