"""Segments to passes: every row once, in order, with the state standing where the seam says it is committed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from luce.engines.qwen35.device.passes import Piece, Work, base_after, committed, plan_passes
from luce.engines.qwen35.device.slots import DeviceSlot
from luce.engines.qwen35.slots import new_slot
from luce.engines.seam import RowSource, Segment, SegmentKind
from tests.engines.harness import text_spec


def work(slot: int, start: int, count: int, source: RowSource = RowSource.PROMPT) -> Work:
    spec = text_spec([1] * 9000)
    opened = DeviceSlot.of(new_slot(slot, spec, 9001, 120, 120))
    opened.advance(start, start, start // 64 * 64, ())
    segment = Segment(slot, SegmentKind.PREFILL, start, count, source, True)
    return Work(slot, segment, opened, (), None)


def test_committed_is_the_seams() -> None:
    for start in (0, 1, 63, 64, 100):
        for count in (1, 63, 64, 65, 128, 300):
            segment = Segment(0, SegmentKind.PREFILL, start, count, RowSource.PROMPT, True)
            assert committed(start, count) == segment.commits
            assert base_after(start, count) == segment.commits // 64 * 64


@given(
    st.lists(
        st.tuples(st.integers(0, 300), st.one_of(st.just(1), st.integers(1, 400))), min_size=1, max_size=70
    ),
    st.sampled_from([64, 100, 256, 1000]),
    st.integers(1, 8),
)
def test_every_row_runs_once_in_order(wanted: list[tuple[int, int]], max_rows: int, max_lanes: int) -> None:
    works = [work(slot, start, count) for slot, (start, count) in enumerate(wanted)]
    done: dict[int, list[Piece]] = {slot: [] for slot in range(len(works))}
    chunks_begun = False
    for is_step, pieces in plan_passes(works, max_rows, max_lanes):
        assert pieces and len({piece.work.slot.index for piece in pieces}) == len(pieces)
        chunks_begun = chunks_begun or not is_step
        if is_step:
            assert not chunks_begun and len(pieces) <= 64 and all(piece.count == 1 for piece in pieces)
        else:
            assert sum(piece.count for piece in pieces) <= max_rows and len(pieces) <= max_lanes
        for piece in pieces:
            done[piece.work.slot.index].append(piece)
    for one in works:
        start, end = one.segment.start, one.segment.start + one.segment.count
        pieces = done[one.slot.index]
        assert np.concatenate([np.arange(p.start, p.end) for p in pieces]).tolist() == list(range(start, end))
        base = start // 64 * 64
        for piece in pieces:
            assert piece.base == base and piece.base_after >= base and piece.base_after % 64 == 0
            assert piece.start - piece.base < 128 and piece.end - piece.base_after <= 128
            assert piece.last == (piece.end == end)
            base = piece.base_after
        commits = one.segment.commits
        assert (one.slot.start, one.slot.high, one.slot.base) == (commits, end, commits // 64 * 64)


def kinds(works: list[Work], max_rows: int = 2048) -> list[tuple[bool, int]]:
    return [(is_step, len(pieces)) for is_step, pieces in plan_passes(works, max_rows, 64)]


@pytest.mark.parametrize(
    ("chunks", "singles", "joined"),
    [
        ([1085], 2, True),
        ([41, 1044], 2, True),
        ([276], 3, True),
        ([319], 1, True),
        ([320], 1, False),  # one more tile of rows
        ([10], 6, True),
        ([10], 7, False),  # a pass of 64 rows in the place of 16
        ([200], 7, True),
        ([200], 8, False),  # a kind of graph that is not recorded at the start
        ([1000], 24, False),  # a graph, of a kind that is not
        ([1000], 23, True),
        ([2048], 1, False),
        ([2040], 9, False),
        ([2040], 7, True),
        ([2048, 30], 1, True),
    ],
)
def test_last_rows_of_prompts_go_along_where_they_cost_nothing(
    chunks: list[int], singles: int, joined: bool
) -> None:
    works = [work(slot, 0, count) for slot, count in enumerate(chunks)]
    works += [work(10 + number, 900 + number, 1) for number in range(singles)]
    found = kinds(works)
    assert sum(is_step for is_step, _ in found) == (not joined)
    assert sum(count for _, count in found) == len(works)
    assert found[0] == (True, singles) or found[-1][1] >= singles + 1


def test_rows_of_answers_and_rows_far_behind_do_not() -> None:
    chunk = work(0, 0, 1085)
    assert kinds([chunk, work(1, 1043, 1)]) == [(False, 2)]
    assert kinds([chunk, work(1, 1043, 1, RowSource.LAST_SAMPLED)]) == [(True, 1), (False, 1)]
    both = [chunk, work(1, 1043, 1), work(2, 1043, 1, RowSource.LAST_SAMPLED)]
    assert kinds(both) == [(True, 2), (False, 1)], "there is a step pass anyway"
    assert kinds([work(0, 0, 1085), work(1, 4096, 1)]) == [(True, 1), (False, 1)], "it would be late"
    assert kinds([work(0, 4000, 1085), work(1, 4096, 1)]) == [(False, 2)], "as late as another"
