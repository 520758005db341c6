"""The value-head permutation and other value changes, by their definitions in spec qwen35 §17."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from luce.engines.qwen35.conversions import (
    columns_to_grouped,
    neg_exp,
    plus_one,
    rows_to_grouped,
    sum_frames,
    tiled_order,
)

HEADS = st.tuples(st.integers(1, 8), st.integers(1, 4))


@given(heads=HEADS)
def test_order_is_the_inverse_of_the_converter_s(heads: tuple[int, int]) -> None:
    key_heads, ratio = heads
    order = tiled_order(key_heads, key_heads * ratio)
    for grouped in range(key_heads * ratio):
        tiled = order[grouped]
        assert (tiled % key_heads) * ratio + tiled // key_heads == grouped
        assert grouped // ratio == tiled % key_heads, "both forms pair the head with the same key head"


@given(heads=HEADS, width=st.integers(1, 3), first=st.integers(0, 5), columns=st.integers(1, 4))
def test_rows_and_columns_move_as_blocks(
    heads: tuple[int, int], width: int, first: int, columns: int
) -> None:
    key_heads, ratio = heads
    count = key_heads * ratio
    grouped = np.arange((first + count * width) * columns, dtype=np.float32).reshape(-1, columns)
    tiled = grouped.copy()
    for n in range(count):
        old = (n % key_heads) * ratio + n // key_heads
        tiled[first + n * width : first + (n + 1) * width] = grouped[
            first + old * width : first + (old + 1) * width
        ]
    assert (tiled == grouped).all() == (key_heads == 1 or ratio == 1)
    assert (rows_to_grouped(key_heads, count, first)(tiled.copy()) == grouped).all()
    if first == 0:
        back = columns_to_grouped(key_heads, count)(np.ascontiguousarray(tiled.T))
        assert (back == grouped.T).all() and back.flags.c_contiguous


def test_vectors_permute_like_rows() -> None:
    assert rows_to_grouped(2, 6)(np.array([0, 10, 1, 11, 2, 12], np.float32)).tolist() == [
        0,
        1,
        2,
        10,
        11,
        12,
    ]


def test_scalars() -> None:
    assert plus_one(np.array([-0.5, 0.25], np.float32)).tolist() == [0.5, 1.25]
    found = neg_exp(np.array([0, 1, -3], np.float32))
    assert found.dtype == np.float32
    assert found.tolist() == [np.float32(-np.exp(np.float64(x))) for x in (0, 1, -3)]
    frames = np.arange(2 * 3 * 2 * 4, dtype=np.float32).reshape(2, 3, 2, 2, 2)
    assert (sum_frames(frames) == (frames[:, :, 0] + frames[:, :, 1]).reshape(2, 12)).all()
