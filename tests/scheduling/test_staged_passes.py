"""Who is in a staged pass, with which rows, and how a pass is cut into slices."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from luce.engines.fake.engine import deepseek_capabilities, fake_capabilities
from luce.engines.seam import ImageSpan, RowSource, Segment, SegmentKind
from luce.scheduling.plan import plan
from luce.scheduling.staged_chunks import check_chunk, staged_chunk
from luce.scheduling.staged_passes import (
    PassLimits,
    StagedPass,
    StagedPrompt,
    StagedRows,
    pass_after,
    pass_limits,
    staged_fault,
    staged_rows,
    staged_segments,
    without,
)
from luce.scheduling.state import Lane, Limits, LoopState

LIMITS = PassLimits(num_layers=43, slice_layers=6, min_rows=5, rows=256, rows_alone=1024)


def prompt(*blocks: tuple[int, int], end: int, ready: int | None = None, min_rows: int = 5) -> StagedPrompt:
    return StagedPrompt(blocks, end, end if ready is None else ready, min_rows)


def shares(segments: tuple[Segment, ...]) -> list[tuple[int, int, int]]:
    return [(segment.slot, segment.start, segment.count) for segment in segments]


@st.composite
def prompts(draw: st.DrawFn) -> StagedPrompt:
    blocks, at = [], 0
    for text, rows in draw(
        st.lists(st.tuples(st.integers(0, 12), st.integers(1, 20)), min_size=1, max_size=4)
    ):
        blocks.append((at + text, at + text + rows))
        at += text + rows
    end = at + draw(st.integers(0, 12))
    encoded = draw(st.integers(0, len(blocks)))
    ready = end if encoded == len(blocks) else blocks[encoded][0]
    return StagedPrompt(tuple(blocks), end, ready, draw(st.integers(1, 8)))


@given(prompts(), st.integers(1, 60))
def test_rows_keep_the_rule_and_wait_for_pictures(one: StagedPrompt, budget: int) -> None:
    """The picker's own rows whenever they are ready; else fewer rows that keep the contract, or none."""
    picked = staged_chunk(one.blocks, 0, one.end, budget, one.min_rows)
    count = staged_rows(one, 0, budget)
    if picked <= one.ready:
        assert count == picked
    else:
        assert count <= one.ready
        if count:
            check_chunk(one.blocks, 0, count, one.end, budget, one.min_rows)


@given(prompts(), st.integers(1, 60))
def test_what_is_ready_for_any_budget_is_ready_for_each(one: StagedPrompt, budget: int) -> None:
    """The chart asks with the whole prompt for a budget; a pass must then find rows with its own."""
    assert (staged_rows(one, 0, one.end) > 0) == (staged_rows(one, 0, budget) > 0)


@given(prompts(), st.lists(st.integers(1, 60), min_size=1, max_size=5))
def test_a_prompt_gets_through(one: StagedPrompt, budgets: list[int]) -> None:
    """Chunk after chunk, to the end of what is ready or of the prefix, and on to its end when pictures come."""
    if one.end < one.min_rows:
        return
    at = turn = 0
    for now in (one, one._replace(ready=one.end)):
        while count := staged_rows(now, at, budgets[turn % len(budgets)]):
            at += count
            turn += 1
            assert at <= now.ready
            assert not any(begin < at < stop for begin, stop in one.blocks)
    assert at == one.end


def test_a_pass_is_shared_oldest_first_within_its_budget() -> None:
    ready = [
        (3, 0, prompt((2, 102), end=110)),
        (1, 10, prompt((2, 8), (20, 120), end=140)),
        (0, 0, prompt((2, 102), end=110)),
    ]
    busy = staged_segments(None, ready, LIMITS, alone=False)
    assert shares(busy) == [(3, 0, 110), (1, 10, 130)]  # the third would exceed the 16 rows that are left
    alone = staged_segments(None, ready, LIMITS, alone=True)
    assert shares(alone) == [(3, 0, 110), (1, 10, 130), (0, 0, 110)]
    assert {segment.layers for segment in busy} == {(0, 6)} and {s.layers for s in alone} == {(0, 43)}
    assert all(s.kind is SegmentKind.STAGED and s.source is RowSource.PROMPT and not s.sample for s in busy)


def test_only_the_first_exceeds_the_budget_and_nobody_overtakes() -> None:
    large, small = prompt((2, 400), end=500), prompt((2, 20), end=30)
    assert shares(staged_segments(None, [(0, 0, large), (1, 0, small)], LIMITS, alone=False)) == [(0, 0, 400)]
    assert shares(
        staged_segments(None, [(1, 0, small), (0, 0, large), (2, 0, small)], LIMITS, alone=False)
    ) == [(1, 0, 30)]


def test_slices_cover_every_layer_once() -> None:
    under_way, seen = None, []
    ready = [(0, 0, prompt((2, 102), end=110)), (1, 0, prompt((2, 102), end=110))]
    while True:
        segments = staged_segments(under_way, ready, LIMITS, alone=False)
        seen.append(segments[0].layers)
        assert shares(segments) == [(0, 0, 110), (1, 0, 110)]
        under_way = pass_after(under_way, segments, 43)
        if under_way is None:
            break
    assert seen == [(at, min(at + 6, 43)) for at in range(0, 43, 6)] and len(seen) == 8


def test_a_pass_that_is_alone_again_runs_to_its_end() -> None:
    under_way = StagedPass((StagedRows(2, 0, 50),), 12)
    assert staged_segments(under_way, [], LIMITS, alone=True)[0].layers == (12, 43)
    uncut = attrs.evolve(LIMITS, slice_layers=0)
    assert staged_segments(under_way, [], uncut, alone=False)[0].layers == (12, 43)


def test_who_has_ended_leaves_the_pass() -> None:
    both = StagedPass((StagedRows(0, 0, 50), StagedRows(1, 0, 50)), 12)
    assert without(both, 0) == StagedPass((StagedRows(1, 0, 50),), 12)
    assert without(without(both, 0), 1) is None and without(None, 3) is None
    assert pass_after(both, [Segment(5, SegmentKind.DECODE, 9, 1, RowSource.LAST_SAMPLED, True)], 43) is both


# -- beside everything else -------------------------------------------------------------------------------------------

STAGED = Lane(0, 0, 0, 111, 111, 130, 128, runnable=False, staged=prompt((2, 102), end=110))
DECODING = Lane(1, 1, 40, 30, 30, 60, 128)


def state(*lanes: Lane, **changes: object) -> LoopState:
    limits = Limits(6, 128, 64, LIMITS)
    return attrs.evolve(LoopState(limits, lanes, (), (), 100), **changes)


def kinds(decision: object) -> list[tuple[str, tuple[int, int] | None]]:
    return [(segment.kind.value, segment.layers) for segment in decision.segments]  # type: ignore[attr-defined]


def test_a_pass_is_whole_when_nobody_else_is_there_and_sliced_beside_others() -> None:
    assert kinds(plan(state(STAGED))) == [("staged", (0, 43))]
    assert kinds(plan(state(STAGED, DECODING))) == [("decode", None), ("staged", (0, 6))]
    prefilling = Lane(1, 1, 0, 300, 300, 400, 384)
    assert kinds(plan(state(STAGED, prefilling))) == [("prefill", None), ("staged", (0, 6))]
    stalled = DECODING._replace(runnable=False)
    assert kinds(plan(state(STAGED, stalled))) == [("staged", (0, 6))]
    encoding = STAGED._replace(slot=2, staged=None)
    assert kinds(plan(state(STAGED, encoding))) == [("staged", (0, 43))]


def test_no_slice_beside_the_copy_of_a_staged_prompt_nor_in_plans_made_ahead() -> None:
    assert kinds(plan(state(STAGED, DECODING, importing=True))) == [("decode", None)]
    ahead = DECODING._replace(in_flight=True)
    assert kinds(plan(state(STAGED, ahead, run_ahead=True))) == [("decode", None)]


def test_the_last_row_of_a_staged_prompt_goes_with_the_decode_rows() -> None:
    """Whatever prompts of others are in front of it."""
    imported = STAGED._replace(order=9, next_row=110, runnable=True, staged=None, imported=True)
    long = Lane(2, 1, 0, 300, 300, 400, 384)
    [last, chunk] = plan(state(imported, long)).segments
    assert last == Segment(0, SegmentKind.DECODE, 110, 1, RowSource.PROMPT, sample=True)
    assert (chunk.slot, chunk.count) == (2, 64)


# -- who may come in --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("span", "rows", "fault"),
    [
        (ImageSpan(2, 10, 0), 12, "the prompt ends with a picture"),
        (ImageSpan(2, 10, 0), 13, None),
        (ImageSpan(1, 2, 0), 5, "at least 6 tokens"),
        (ImageSpan(1, 2, 0), 6, None),
    ],
)
def test_prompts_that_can_never_be_staged(span: ImageSpan, rows: int, fault: str | None) -> None:
    said = staged_fault((span,), rows, deepseek_capabilities())
    assert (said is None) == (fault is None)
    assert fault is None or fault in str(said)
    assert staged_fault((span,), rows, fake_capabilities()) is None
    assert staged_fault((), 1, deepseek_capabilities()) is None


def test_limits_come_from_the_engine() -> None:
    assert pass_limits(fake_capabilities(), 256, 1024) is None
    assert pass_limits(deepseek_capabilities(), 256, 1024) == LIMITS
