"""M-RoPE positions: the documented example, neighbours without separators, slices (B15)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from luce.engines.qwen35.positions import mrope_positions
from luce.engines.seam import ImageSpan


def spans_of(
    plan: list[int | tuple[int, int]], merge: int = 2
) -> tuple[int, list[ImageSpan], list[tuple[int, int]]]:
    """(tokens, spans, grids) of a prompt given as text lengths and merged (rows, columns)."""
    at, spans, grids = 0, [], []
    for part in plan:
        if isinstance(part, int):
            at += part
        else:
            spans.append(ImageSpan(at, part[0] * part[1], len(grids)))
            grids.append((part[0] * merge, part[1] * merge))
            at += part[0] * part[1]
    return at, spans, grids


def by_definition(plan: list[int | tuple[int, int]]) -> tuple[npt.NDArray[np.int64], int]:
    """Token by token, as the specification words it."""
    found: list[tuple[int, int, int]] = []
    current = 0
    for part in plan:
        if isinstance(part, int):
            for _ in range(part):
                found.append((current, current, current))
                current += 1
        else:
            rows, columns = part
            found += [(current, current + r, current + c) for r in range(rows) for c in range(columns)]
            current += max(rows, columns)
    table = np.array(found, np.int64).reshape(-1, 3).T
    return table, int(table.max(initial=-1)) + 1 - len(found)


def test_documented_example() -> None:
    """Spec qwen35 §10."""
    positions, delta = mrope_positions(*spans_of([2, (2, 3), 2]), 2)
    assert positions.tolist() == [
        [0, 1, 2, 2, 2, 2, 2, 2, 5, 6],
        [0, 1, 2, 2, 2, 3, 3, 3, 5, 6],
        [0, 1, 2, 3, 4, 2, 3, 4, 5, 6],
    ]
    assert delta == -3 and positions.dtype == np.int32


def test_text_alone_counts() -> None:
    positions, delta = mrope_positions(5, [], [], 2)
    assert positions.tolist() == [[0, 1, 2, 3, 4]] * 3 and delta == 0
    assert mrope_positions(0, [], [], 2)[1] == 0


def test_neighbours_are_told_apart() -> None:
    """Two pictures without a token between them, which the reference takes for one."""
    positions, delta = mrope_positions(*spans_of([1, (1, 2), (3, 1), 1]), 2)
    assert positions.tolist() == [[0, 1, 1, 3, 3, 3, 6], [0, 1, 1, 3, 4, 5, 6], [0, 1, 2, 3, 3, 3, 6]]
    assert delta == 0


def test_the_delta_of_wide_and_tall_pictures() -> None:
    """The advance is the longer side: no gain for a line, a large one for a square."""
    assert mrope_positions(*spans_of([2, (1, 9), 1]), 2)[1] == 0
    assert mrope_positions(*spans_of([2, (9, 1), 1]), 2)[1] == 0
    assert mrope_positions(*spans_of([2, (9, 9), 1]), 2)[1] == 9 - 81


PLAN = st.lists(st.integers(0, 5) | st.tuples(st.integers(1, 5), st.integers(1, 5)), max_size=8)


@given(PLAN)
def test_equal_to_the_definition(plan: list[int | tuple[int, int]]) -> None:
    positions, delta = mrope_positions(*spans_of(plan), 2)
    expected, expected_delta = by_definition(plan)
    assert np.array_equal(positions, expected) and delta == expected_delta


@pytest.mark.parametrize("more", [0, 1, 7])
def test_a_longer_prompt_begins_the_same(more: int) -> None:
    """B15: chunk [a:b) of a prompt is [a:b) of one table, however the prompt goes on."""
    plan: list[int | tuple[int, int]] = [3, (2, 3), 4, (4, 1), 2]
    whole, _ = mrope_positions(*spans_of([*plan, more, (2, 2), 1]), 2)
    part, delta = mrope_positions(*spans_of(plan), 2)
    length = part.shape[1]
    for a in range(length):
        for b in range(a, length + 1):
            assert np.array_equal(whole[:, a:b], part[:, a:b])
    if more:
        assert (whole[:, length] == length + delta).all(), "generated tokens continue from the delta"


def test_grids_follow_the_span_not_the_order() -> None:
    """Spans index the grids."""
    spans = [ImageSpan(0, 2, 1), ImageSpan(2, 6, 0)]
    positions, _ = mrope_positions(8, spans, [(4, 6), (2, 4)], 2)
    assert positions[2].tolist() == [0, 1, 2, 3, 4, 2, 3, 4]
