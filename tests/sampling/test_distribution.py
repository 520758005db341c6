"""Kept sets and log-probabilities against slow, obvious versions of the same definitions."""

import math
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from luce.sampling.distribution import keep, log_normaliser, top_ids

# A coarse grid makes ties common; a fine one makes sums matter.
values = st.one_of(
    st.integers(-6, 6).map(float), st.floats(-30, 30, width=32), st.sampled_from([3e38, -3e38, 0.0])
)
rows = st.lists(values, min_size=1, max_size=60).map(lambda row: np.array(row, np.float64))


def slow_keep(x: npt.NDArray[np.float64], min_p: float, top_k: int, top_p: float) -> list[int]:
    ids = sorted(range(len(x)), key=lambda i: (-x[i], i))
    best = x[ids[0]]
    if min_p > 0:
        ids = [i for i in ids if x[i] >= best + math.log(min_p)]
    if top_k > 0:
        ids = ids[:top_k]
    if top_p < 1:
        weights = {i: math.floor(float(np.exp(x[i] - best)) * 2**40) for i in ids}
        total, reached, kept = sum(weights.values()), 0, []
        for i in ids:
            kept.append(i)
            reached += weights[i]
            if reached >= Fraction(top_p) * total:
                break
        ids = kept
    return sorted(ids)


@given(
    rows,
    st.sampled_from([0.0, 1e-6, 0.05, 0.5, 1.0]) | st.floats(0, 1),
    st.integers(-1, 70),
    st.sampled_from([1.0, 0.9, 0.5, 1e-9]) | st.floats(0, 1, exclude_min=True),
)
def test_keep_equals_the_slow_definition(
    x: npt.NDArray[np.float64], min_p: float, top_k: int, top_p: float
) -> None:
    kept = keep(x, min_p=min_p, top_k=top_k, top_p=top_p).tolist()
    assert kept == slow_keep(x, min_p, top_k, top_p)
    assert len(kept) >= 1
    assert int(x.argmax()) in kept


@given(rows, st.integers(1, 70))
def test_top_ids(x: npt.NDArray[np.float64], k: int) -> None:
    assert top_ids(x, k).tolist() == sorted(range(len(x)), key=lambda i: (-x[i], i))[:k]


@pytest.mark.parametrize("n", [64, 65, 1000, 4096, 5003])
@pytest.mark.parametrize("levels", [1, 3, 50, 10**6])
def test_top_ids_of_long_rows(n: int, levels: int) -> None:
    """The bound from group maxima keeps every tie and loses nothing, wherever the best values lie."""
    random = np.random.default_rng(n + levels)
    x = random.integers(0, levels, n).astype(np.float32)
    for row in (x, np.sort(x), -np.sort(x), np.where(np.arange(n) >= n - 3, np.float32(1e9), x)):
        for k in (1, 2, 20, 70):
            assert top_ids(row, k).tolist() == sorted(range(n), key=lambda i: (-row[i], i))[:k]


def test_keep_by_hand() -> None:
    x = np.log(np.array([0.1, 0.4, 0.2, 0.3]))
    off = {"min_p": 0.0, "top_k": 0, "top_p": 1.0}
    assert keep(x, **off).tolist() == [0, 1, 2, 3]
    assert keep(x, **off | {"top_p": 0.65}).tolist() == [1, 3]
    assert keep(x, **off | {"top_p": 0.75}).tolist() == [1, 2, 3]
    assert keep(x, **off | {"top_k": 2}).tolist() == [1, 3]
    assert keep(x, **off | {"min_p": 0.49}).tolist() == [1, 2, 3]
    # top_p sees what top_k left, renormalised: of (4/7, 3/7) the first alone reaches 0.55 but not 0.6.
    assert keep(x, min_p=0.0, top_k=2, top_p=0.55).tolist() == [1]
    assert keep(x, min_p=0.0, top_k=2, top_p=0.6).tolist() == [1, 3]


def test_equal_values_stay_by_lower_id() -> None:
    x = np.zeros(10)
    assert keep(x, min_p=0.0, top_k=3, top_p=1.0).tolist() == [0, 1, 2]
    assert keep(x, min_p=0.0, top_k=0, top_p=0.25).tolist() == [0, 1, 2]
    assert keep(x, min_p=0.0, top_k=0, top_p=0.3).tolist() == [0, 1, 2]  # 0.3 < 3/10 as a double
    assert keep(x, min_p=0.0, top_k=0, top_p=math.nextafter(0.3, 1)).tolist() == [0, 1, 2, 3]


def test_masked_entries_are_allowed() -> None:
    x = np.array([-np.inf, 1.0, -np.inf, 0.0])
    assert keep(x, min_p=0.0, top_k=0, top_p=0.999).tolist() == [1, 3]
    assert keep(x, min_p=0.1, top_k=0, top_p=1.0).tolist() == [1, 3]


def test_top_p_at_a_large_vocabulary() -> None:
    """The pruned nucleus equals the one from a full sort."""
    x = np.random.default_rng(3).normal(0, 3, 50_000)
    order = np.argsort(-x, kind="stable")
    weights = np.floor(np.exp(x - x.max()) * 2.0**40).astype(np.int64)
    for top_p in (0.1, 0.5, 0.9, 0.95, 0.999, 0.9999999):
        target = math.ceil(Fraction(top_p) * int(weights.sum()))
        count = int(np.searchsorted(np.cumsum(weights[order]), target)) + 1
        assert keep(x, min_p=0.0, top_k=0, top_p=top_p).tolist() == sorted(order[:count].tolist())


def test_log_normaliser_by_hand() -> None:
    row = np.array([0.0, math.log(2.0), math.log(5.0)], np.float32)
    assert log_normaliser(row) == pytest.approx(math.log(8.0), abs=1e-7)
    assert log_normaliser(np.full(4, 3e38, np.float32)) == pytest.approx(float(np.float32(3e38)))


def test_log_normaliser_does_not_depend_on_where_the_row_lies() -> None:
    """Same bits at any alignment and beside any other row."""
    row = np.random.default_rng(1).normal(0, 4, 2111).astype(np.float32)
    alone = log_normaliser(row)
    for shift in range(17):
        batch = np.full(len(row) + 40, np.nan, np.float32)
        batch[shift : shift + len(row)] = row
        assert log_normaliser(batch[shift : shift + len(row)]) == alone
