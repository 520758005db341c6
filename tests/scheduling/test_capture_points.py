from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from luce.engines.seam import RowSource, Segment, SegmentKind
from luce.scheduling.capture_points import anchor_point, capture_points, next_cut, shared_point
from tests.scheduling.prompts import Part, keys, prompts, text

A, B = (b"a" * 32, 6), (b"b" * 32, 6)


@given(prompts, st.data())
def test_every_point_can_be_the_end_of_a_chunk(prompt: list[Part], data: st.DataObject) -> None:
    sequence = keys(prompt)
    length = len(sequence)
    positions = st.integers(0, length)
    turn_ends = data.draw(st.lists(positions))
    answer_start = data.draw(st.none() | positions)
    start = data.draw(positions)
    spacing = data.draw(st.integers(1, 5))
    points = capture_points(
        sequence,
        turn_ends=turn_ends,
        answer_start=answer_start,
        start=start,
        stride=data.draw(st.integers(0, 4)),
        spacing=spacing,
    )
    anchor = anchor_point(sequence, answer_start)
    assert list(points) == sorted(set(points))
    assert all(start < point <= anchor and sequence.may_end_hit(point) for point in points)
    assert (points[-1:] == (anchor,)) == (anchor > start)
    assert all(end in points for end in sequence.image_ends if start < end <= anchor)
    thinned = [end for end in turn_ends if start < end < anchor and not sequence.splits_image(end)]
    for end in thinned:
        nearest = min(point for point in points if point >= end)
        assert nearest - end < spacing, "a turn's end is a point, or one comes soon behind it"


@given(prompts, st.data())
def test_a_shared_prompt_is_captured_near_its_end(prompt: list[Part], data: st.DataObject) -> None:
    """One point more at most, behind all others: what is behind it is short, or begins with a picture that ends the
    prompt, and it leaves a row to compute."""
    sequence = keys(prompt)
    answer_start = data.draw(st.none() | st.integers(0, len(sequence)))
    start, spacing = data.draw(st.integers(0, len(sequence))), data.draw(st.integers(1, 5))
    lone = capture_points(sequence, answer_start=answer_start, start=start, stride=0, spacing=spacing)
    points = capture_points(
        sequence, answer_start=answer_start, start=start, stride=0, spacing=spacing, shared=True
    )
    point = shared_point(sequence, answer_start, spacing=spacing)
    last = sequence.before_image(max(len(sequence) - 1, 0))
    assert point >= last - spacing and point in (last, anchor_point(sequence, answer_start))
    assert points == tuple(sorted({*lone, point} - ({point} if point <= start else set())))
    assert point == 0 or sequence.may_end_hit(point)


@given(
    st.lists(st.integers(1, 400), unique=True, max_size=12),
    st.integers(0, 400),
    st.integers(1, 400),
    st.integers(1, 200),
    st.booleans(),
)
def test_every_point_can_be_captured_behind_the_chunk_that_it_is_in(
    points: list[int], start: int, more: int, budget: int, beyond: bool
) -> None:
    points.sort()
    end, at = start + more, start
    while at < end:
        cut = next_cut(at, points, end if beyond else None)
        assert cut is None or (cut > at and cut in points)
        stop = min(end, at + budget, end if cut is None else cut)
        chunk = Segment(0, SegmentKind.PREFILL, at, stop - at, RowSource.PROMPT, False)
        assert all(chunk.commits <= point for point in points if at < point <= stop)
        at = stop


def test_points_close_to_one_another_share_a_chunk() -> None:
    picture, turn = 1029, 1038
    assert next_cut(0, [picture, turn]) == turn
    assert next_cut(0, [1020, turn]) == 1020, "rows up to 1024 would be final then"
    assert next_cut(0, [1020, 1024, turn]) == 1024
    assert next_cut(1000, [1020, 1064, 1065]) == 1064, "few rows are not final before the next segment"
    assert next_cut(turn, [picture, turn]) is None


def test_a_prompt_that_ends_soon_behind_its_last_point_is_not_cut_there() -> None:
    assert next_cut(0, [1029, 1038], 1043) is None
    assert next_cut(0, [1029, 1038], 1088) is None
    assert next_cut(0, [1029, 1038], 1089) == 1038, "rows up to 1088 would be final then"
    assert next_cut(0, [500, 1038], 1043) == 500
    assert next_cut(1000, [1020], 1064) is None, "few rows are not final before the next segment"
    assert next_cut(0, [1029, 1038]) == 1038


def test_a_chat() -> None:
    """Turn ends, the generation prompt, pictures, and every 1,024th token."""
    prompt = keys([*text(100), A, *text(2394), *text(100), *text(4)])
    points = capture_points(prompt, turn_ends=[90, 2400, 2500, 2600], answer_start=2600)
    assert points == (106, 1024, 2048, 2400, 2500, 2600)
    assert capture_points(prompt, turn_ends=[90, 2400, 2500], answer_start=2600, start=2400) == (2500, 2600)
    assert capture_points(prompt, turn_ends=[90], answer_start=2600, start=2600) == ()
    assert 90 in capture_points(prompt, turn_ends=[90], answer_start=2600, spacing=16)


def test_many_short_turns_do_not_chop_up_a_prompt() -> None:
    ends = list(range(10, 1000, 10))
    points = capture_points(keys(text(1004)), turn_ends=ends, answer_start=1000)
    assert points[-1] == 1000 and len(points) == 1 + 990 // 70
    assert min(b - a for a, b in pairwise(points)) >= 64


@pytest.mark.parametrize(
    ("length", "point"), [(1, ()), (2, (1,)), (31, (30,)), (32, (31,)), (33, (32,)), (48, (47,))]
)
def test_b53_without_a_generation_prompt_the_same_prompt_can_be_taken_up_to_its_last_row(
    length: int, point: tuple[int, ...]
) -> None:
    for none in (None, length):
        assert capture_points(keys(text(length), 16), answer_start=none) == point


def test_b09_behind_every_picture_and_never_inside_one() -> None:
    prompt = keys([1, 2, A, 3, B, 4, 5])
    assert capture_points(prompt, answer_start=16) == (8, 15, 16)
    assert capture_points(prompt, answer_start=16, turn_ends=[5, 9, 12], spacing=1) == (8, 9, 15, 16)
    assert capture_points(prompt, stride=3, answer_start=16) == (8, 9, 15, 16)


def test_b10_a_picture_at_the_end() -> None:
    """The same prompt can go on from before the picture only: its last row is the picture's."""
    assert capture_points(keys([1, 2, A])) == (2,)
    assert capture_points(keys([A])) == ()
    assert capture_points(keys([A, 1])) == (6,)
    assert anchor_point(keys([])) == 0 and capture_points(keys([])) == ()


def test_b111_the_place_before_the_generation_prompt_is_always_taken() -> None:
    """Whatever the template makes of the answer later, the next turn's prompt begins with this."""
    prompt = keys(text(103))
    assert capture_points(prompt, turn_ends=[99], answer_start=100)[-1] == 100
    following = keys([*text(100), 5, 6, 7])
    assert following.digest(100) == prompt.digest(100)
