"""Segments to passes: every row once, in order, with the state standing where the seam says it is committed."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from luce.engines.qwen35.device.passes import Piece, Work, base_after, committed, plan_passes
from luce.engines.qwen35.device.slots import DeviceSlot
from luce.engines.qwen35.slots import new_slot
from luce.engines.seam import RowSource, Segment, SegmentKind
from tests.engines.harness import text_spec


def work(slot: int, start: int, count: int) -> Work:
    spec = text_spec([1] * 4096)
    opened = DeviceSlot.of(new_slot(slot, spec, 5000, 120, 120))
    opened.advance(start, start, start // 64 * 64, ())
    segment = Segment(slot, SegmentKind.PREFILL, start, count, RowSource.PROMPT, True)
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
