"""Mixture of experts: right values, and a row's bits from its own experts alone, whoever else is there."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from luce.compute.tiles import padded
from luce.engines.qwen35.config import MoeConfig
from luce.engines.qwen35.moe import Moe, route
from luce.engines.qwen35.packed import PackedMoe, pack_text
from luce.engines.qwen35.weights import MoeWeights
from tests.engines.harness import same_bits
from tests.engines.models import MIXTURE, random_weights, tiny_config
from tests.engines.oracle import mixture, wide

F32 = npt.NDArray[np.float32]

ROWS = 64
CONFIGS = {
    "7, 3 of them": MIXTURE,
    "one": MoeConfig(experts=1, used=1, ffn=24, shared_ffn=8),
    "all of 9": MoeConfig(experts=9, used=9, ffn=33, shared_ffn=65),
    "40, 8 of them": MoeConfig(experts=40, used=8, ffn=16, shared_ffn=32),
}


@attrs.frozen(eq=False)
class Layer:
    """One layer's feed-forward and its scratch."""

    config: MoeConfig
    weights: MoeWeights
    packed: PackedMoe
    moe: Moe

    def __call__(self, rows: F32) -> F32:
        """Rows [R, 64], normalised, through the layer. Whatever was in the buffers before is NaN."""
        x = np.full((padded(ROWS), 64), np.nan, np.float32)
        out = np.full((padded(ROWS), self.packed.shared_down.width), np.nan, np.float32)
        x[: len(rows)] = rows
        for name, value in vars(self.moe).items():
            if isinstance(value, np.ndarray):
                assert value.dtype == np.float32, name
                value.fill(np.nan)
        with np.errstate(all="ignore"):
            self.moe(self.packed, x, out, len(rows))
        return out[: len(rows), :64].copy()


def layer(moe: MoeConfig, change: Callable[[MoeWeights], MoeWeights] = lambda w: w) -> Layer:
    """The feed-forward of a tiny model's first layer. Its norm has scale 1 / 8: packed are the weights as they are."""
    config = tiny_config(moe=moe, layers=1)
    weights = random_weights(config, 5)
    ffn = weights.layers[0].ffn
    assert isinstance(ffn, MoeWeights)
    ffn = change(ffn)
    first = attrs.evolve(weights.layers[0], ffn=ffn, post_norm=np.full(64, 0.125, np.float32))
    packed = pack_text(attrs.evolve(weights, layers=(first,)), config.text).layers[0].ffn
    assert isinstance(packed, PackedMoe)
    return Layer(moe, ffn, packed, Moe(moe, 64, packed, ROWS))


def rows(count: int, seed: int) -> F32:
    return np.random.default_rng(seed).standard_normal((count, 64)).astype(np.float32)


@pytest.mark.parametrize("name", CONFIGS)
def test_values(name: str) -> None:
    one = layer(CONFIGS[name])
    x = rows(ROWS, 1)
    config = tiny_config(moe=one.config).text
    np.testing.assert_allclose(one(x), mixture(wide(x), one.weights, config), atol=2e-5, rtol=0)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 8, 9, 16, 33, 63])
def test_a_row_is_the_same_in_every_batch(name: str, count: int) -> None:
    one = layer(CONFIGS[name])
    x = rows(ROWS, 2)
    whole = one(x)
    for first in range(0, ROWS - count, 11):
        assert same_bits(one(x[first : first + count]), whole[first : first + count])
    turned = np.random.default_rng(count).permutation(ROWS)
    assert same_bits(one(x[turned[:count]]), whole[turned[:count]])


@settings(max_examples=60, deadline=None)
@given(
    place=st.integers(0, ROWS - 1),
    others=st.sampled_from(["random", "nan", "inf", "huge", "the same", "zero"]),
    seed=st.integers(0, 9),
)
def test_neighbours_do_not_matter(place: int, others: str, seed: int) -> None:
    one = layer(MIXTURE)
    mine = rows(1, seed)
    alone = one(mine)
    x = rows(ROWS, seed + 100)
    fill = {"nan": np.nan, "inf": np.inf, "huge": 3e38, "zero": 0.0}
    if others == "the same":
        x[:] = mine
    elif others != "random":
        x[:] = fill[others]
    x[place] = mine[0]
    assert np.isfinite(alone).all() and same_bits(one(x)[place : place + 1], alone)


def test_all_rows_in_one_expert_and_experts_without_rows() -> None:
    """A router that knows one expert only: others have no rows, and that one has them all."""

    def one_sided(w: MoeWeights) -> MoeWeights:
        router = np.zeros_like(w.router)
        router[4, 0], router[2, 1] = 1.0, 1.0
        return attrs.evolve(w, router=router)

    one = layer(attrs.evolve(MIXTURE, used=2), one_sided)
    x = rows(ROWS, 3)
    x[:, 0], x[:, 1] = 9.0, 5.0
    chosen, _ = route(x @ one.weights.router.T, 2)
    assert (chosen == [4, 2]).all()
    whole = one(x)
    config = tiny_config(moe=one.config).text
    np.testing.assert_allclose(whole, mixture(wide(x), one.weights, config), atol=4e-5, rtol=0)
    for row in range(0, ROWS, 9):
        assert same_bits(one(x[row : row + 1]), whole[row : row + 1])


def test_route_takes_the_largest_logits_and_the_lower_index_among_equals() -> None:
    logits = np.array([[1, 3, 2, 3, 0], [0, 0, 0, 0, 0], [-1, -5, -1, -2, -1]], np.float32)
    chosen, weights = route(logits, 3)
    assert chosen.tolist() == [[1, 3, 2], [0, 1, 2], [0, 2, 4]]
    e = np.exp(np.float32(-1.0))
    np.testing.assert_allclose(weights[0], np.array([1, 1, e]) / (2 + e), rtol=1e-6)
    np.testing.assert_allclose(weights[1:], 1 / 3, rtol=1e-6)
    signed = np.array([[-0.0, 0.0, -1.0]], np.float32)
    assert route(signed, 2)[0].tolist() == [[0, 1]], "zeros are equal"


@pytest.mark.parametrize("used", [1, 2, 7, 8, 10, 32])
@pytest.mark.parametrize("count", [32, 256])
def test_route_against_the_softmax_over_all(count: int, used: int) -> None:
    rng = np.random.default_rng(count + used)
    logits = (4 * rng.standard_normal((50, count))).astype(np.float32)
    chosen, weights = route(logits, used)
    exact = np.exp(logits.astype(np.float64) - logits.max(-1, keepdims=True))
    exact /= exact.sum(-1, keepdims=True)
    for row in range(50):
        best = np.argsort(-exact[row], kind="stable")[:used]
        assert chosen[row].tolist() == best.tolist()
        np.testing.assert_allclose(weights[row], exact[row, best] / exact[row, best].sum(), rtol=1e-5)
        alone = route(logits[row : row + 1], used)
        assert same_bits(alone[1][0], weights[row]) and (alone[0][0] == chosen[row]).all()


def test_a_row_that_is_nan_stays_so_and_harms_nobody() -> None:
    logits = np.array([[np.nan] * 4, [1, 2, 3, 4], [np.inf, 0, 0, 0]], np.float32)
    with np.errstate(all="ignore"):
        chosen, weights = route(logits, 2)
    assert chosen[1].tolist() == [3, 2] and np.isfinite(weights[1]).all()
    assert np.isnan(weights[0]).all() and np.isnan(weights[2]).any()
    one = layer(MIXTURE)
    x = rows(9, 4)
    x[5, 7] = np.nan
    bad = one(x)
    assert np.isnan(bad[5]).all() and np.isfinite(np.delete(bad, 5, 0)).all()
