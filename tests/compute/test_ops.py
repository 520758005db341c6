"""Operators: right values, and the same bits per element and row wherever they stand."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from luce.compute import ops, selfcheck
from luce.errors import DeviceError

F32 = npt.NDArray[np.float32]

EPS = np.float32(1e-6)


def bits(a: F32) -> npt.NDArray[np.uint32]:
    return np.ascontiguousarray(a).view(np.uint32)


def values(count: int, seed: int = 0, scale: float = 6.0) -> F32:
    return (np.random.default_rng(seed).standard_normal(count) * scale).astype(np.float32)


SCALAR: dict[str, tuple[Callable[[F32], F32], Callable[[float], float]]] = {
    "sigmoid": (lambda x: ops.sigmoid(x, np.empty_like(x)), lambda x: 1 / (1 + math.exp(-x))),
    "silu": (lambda x: ops.silu(x, np.empty_like(x)), lambda x: x / (1 + math.exp(-x))),
    "softplus": (ops.softplus, lambda x: math.log1p(math.exp(x)) if x < 30 else x),
    "gelu_tanh": (
        ops.gelu_tanh,
        lambda x: 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    ),
    "gelu_erf": (ops.gelu_erf, lambda x: 0.5 * x * (1 + math.erf(x / math.sqrt(2)))),
    "erf": (ops.erf, math.erf),
}


@pytest.mark.parametrize("name", SCALAR)
def test_values(name: str) -> None:
    function, expected = SCALAR[name]
    x = np.concatenate([values(3000), np.array([0.0, -0.0, 30.0, -30.0, 19.9, 20.1], np.float32)])
    np.testing.assert_allclose(function(x), [expected(float(v)) for v in x], atol=2e-6, rtol=2e-6)


@pytest.mark.parametrize("name", SCALAR)
@settings(max_examples=40, deadline=None)
@given(length=st.integers(1, 70), offset=st.integers(0, 17), stride=st.integers(1, 3))
def test_elementwise_bits_do_not_depend_on_place(name: str, length: int, offset: int, stride: int) -> None:
    """SIMD body, tail, misaligned and strided elements: the same bits as one by one."""
    function, _ = SCALAR[name]
    x = values(70)
    alone = np.concatenate([bits(function(x[i : i + 1].copy())) for i in range(length)])
    moved = np.empty(length * stride + offset, np.float32)[offset::stride][:length]
    moved[...] = x[:length]
    assert np.array_equal(bits(function(moved)), alone)
    table = np.empty((3, length + offset), np.float32)[:, offset:]
    table[...] = x[:length]
    assert np.array_equal(bits(function(table)), np.stack([alone] * 3))


def test_extremes() -> None:
    x = np.array([-1e4, 1e4, -np.inf, np.inf], np.float32)
    with np.errstate(all="ignore"):
        assert ops.sigmoid(x, np.empty_like(x)).tolist() == [0, 1, 0, 1]
        assert ops.silu(x[:2], np.empty(2, np.float32)).tolist() == [0, 1e4]
        assert ops.softplus(x[:2]).tolist() == [0, 1e4]
        assert np.exp(np.float32(-np.inf)) == 0
        assert ops.gelu_erf(x[:2]).tolist() == [0, 1e4] and ops.gelu_tanh(x[:2]).tolist() == [0, 1e4]


ROWS: dict[str, tuple[Callable[[F32], F32], Callable[[npt.NDArray[np.float64]], npt.NDArray[np.float64]]]] = {
    "rms_norm": (
        lambda x: (
            ops.unit_norm(x, np.float32(x.shape[-1] * 1e-6), np.empty_like(x))
            * ops.rms_scale(np.full(x.shape[-1], 1.5, np.float32))
        ),
        lambda x: x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * 1.5,
    ),
    "unit_norm": (
        lambda x: ops.unit_norm(x, EPS, np.empty_like(x)),
        lambda x: x / np.sqrt((x * x).sum(-1, keepdims=True) + 1e-6),
    ),
    "layer_norm": (
        lambda x: ops.layer_norm(
            x, np.full(x.shape[-1], 1.5, np.float32), np.full(x.shape[-1], 0.25, np.float32), EPS,
            np.empty_like(x),
        ),
        lambda x: (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6) * 1.5 + 0.25,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("width", [16, 24, 48, 128, 192, 256, 1000])
def test_norms(name: str, width: int) -> None:
    function, expected = ROWS[name]
    x = values(7 * width, width).reshape(7, width)
    whole = function(x)
    np.testing.assert_allclose(whole, expected(x.astype(np.float64)), atol=3e-6, rtol=3e-6)
    for row in range(7):
        assert np.array_equal(bits(function(x[row : row + 1])), bits(whole[row : row + 1]))
    apart = np.empty((7, width + 5), np.float32)[:, 3 : width + 3]
    apart[...] = x
    assert np.array_equal(bits(function(apart)), bits(whole))
    x[3] = np.nan
    with np.errstate(all="ignore"):
        beside_nan = function(x)
    keep = [row for row in range(7) if row != 3]
    assert np.array_equal(bits(beside_nan[keep]), bits(whole[keep]))


def test_self_check_passes_here_and_names_what_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    selfcheck.check_operators.cache_clear()
    selfcheck.check_operators()

    def drifting(x: F32, out: F32 | None = None) -> F32:
        """A library whose vector body and scalar tail differ."""
        result = np.exp(x.astype(np.float64)).astype(np.float32)
        if len(x) % 8:
            result[-(len(x) % 8) :] = np.nextafter(result[-(len(x) % 8) :], np.float32(np.inf))
        if out is not None:
            out[...] = result
        return result

    drifting.__name__ = "exp"
    assert not selfcheck.elementwise_holds(drifting, values(64))  # type: ignore[arg-type]
    monkeypatch.setattr(selfcheck, "ELEMENTWISE", (drifting,))
    selfcheck.check_operators.cache_clear()
    with pytest.raises(DeviceError, match="exp"):
        selfcheck.check_operators()
    selfcheck.check_operators.cache_clear()


@settings(max_examples=60, deadline=None)
@given(
    heads=st.integers(1, 3),
    rows=st.integers(1, 20),
    splits=st.integers(1, 70),
    dim=st.sampled_from([2, 16, 32, 256]),
    seed=st.integers(0, 99),
)
def test_split_sums_are_added_in_ascending_order(
    heads: int, rows: int, splits: int, dim: int, seed: int
) -> None:
    parts = values(heads * rows * splits * dim, seed).reshape(heads, rows, splits, dim)
    assert selfcheck.ascending_sum_holds(parts)
    total = np.add.accumulate(parts[..., 0], axis=-1)[..., -1:]
    longer = np.concatenate([parts[..., 0], np.zeros((heads, rows, 3), np.float32)], axis=-1)
    assert np.array_equal(bits(np.add.accumulate(longer, axis=-1)[..., -1:]), bits(total))


def test_self_check_finds_a_sum_that_depends_on_the_batch() -> None:
    def by_columns(x: F32) -> F32:
        total = np.add.accumulate(x, axis=1)[:, -1] if len(x) > 1 else np.add.reduce(x, axis=1)
        return np.ascontiguousarray(total)

    rows = values(5 * 256).reshape(5, 256)
    assert not selfcheck.reduction_holds(by_columns, rows)
    assert selfcheck.reduction_holds(lambda x: np.add.reduce(x, axis=-1), rows)
