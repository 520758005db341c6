"""Chi-square of the Gumbel-max draw against the softmax that it claims to sample, with fixed seeds."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from luce.sampling.parameters import SamplingParams
from luce.sampling.sampler import Sampler

VOCAB = 40
DRAWS = 6_000
LOGITS = np.random.default_rng(17).normal(0, 1.5, VOCAB).astype(np.float32)


def expected(temperature: float, kept: npt.NDArray[np.intp]) -> npt.NDArray[np.float64]:
    weights = np.zeros(VOCAB)
    weights[kept] = np.exp(LOGITS[kept].astype(np.float64) / temperature)
    return weights / weights.sum()


def drawn(by: str, **fields: Any) -> npt.NDArray[np.int64]:
    """Counts of tokens over many seeds at one position, or over many positions under one seed."""
    counts = np.zeros(VOCAB, np.int64)
    empty = np.zeros(0, np.int32)
    if by == "seed":
        for seed in range(DRAWS):
            counts[Sampler(SamplingParams(seed=seed, **fields), empty, VOCAB).sample(LOGITS, 0).token] += 1
    else:
        sampler = Sampler(SamplingParams(seed=0, **fields), empty, VOCAB)
        for position in range(DRAWS):
            counts[sampler.sample(LOGITS, position).token] += 1
    return counts


def p_value(counts: npt.NDArray[np.int64], probabilities: npt.NDArray[np.float64]) -> float:
    """Upper tail of chi-square by Wilson and Hilferty's cube root; cells under 5 expected are pooled."""
    assert counts[probabilities == 0].sum() == 0, "a token outside the kept set was drawn"
    wanted = probabilities * counts.sum()
    big = wanted >= 5
    cells = [*zip(counts[big], wanted[big], strict=True)]
    if wanted[~big].sum() >= 5:
        cells.append((counts[~big].sum(), wanted[~big].sum()))
    degrees = len(cells) - 1
    chi = sum((seen - mean) ** 2 / mean for seen, mean in cells)
    z = ((chi / degrees) ** (1 / 3) - (1 - 2 / (9 * degrees))) / math.sqrt(2 / (9 * degrees))
    return math.erfc(z / math.sqrt(2)) / 2


ORDER = np.argsort(-LOGITS)
SHARE = np.cumsum(expected(1.0, ORDER)[ORDER])
NUCLEUS = ORDER[: int(np.searchsorted(SHARE, 0.8)) + 1]
LIKELY = np.flatnonzero(LOGITS - LOGITS.max() >= math.log(0.1))

CASES: list[tuple[dict[str, Any], npt.NDArray[np.float64]]] = [
    ({}, expected(1.0, ORDER)),
    ({"temperature": 2.0}, expected(2.0, ORDER)),
    ({"temperature": 0.6}, expected(0.6, ORDER)),
    ({"top_k": 7}, expected(1.0, ORDER[:7])),
    ({"top_p": 0.8}, expected(1.0, NUCLEUS)),
    ({"min_p": 0.1}, expected(1.0, LIKELY)),
]


@pytest.mark.parametrize("by", ["seed", "position"])
@pytest.mark.parametrize(("fields", "probabilities"), CASES, ids=lambda value: str(value)[:20])
def test_draws_follow_the_softmax(
    by: str, fields: dict[str, Any], probabilities: npt.NDArray[np.float64]
) -> None:
    assert p_value(drawn(by, **fields), probabilities) > 0.001


def test_the_statistic_can_fail() -> None:
    """Armed: draws at a slightly wrong temperature are found out."""
    assert p_value(drawn("seed", temperature=1.2), expected(1.0, ORDER)) < 1e-6


def test_neighbouring_positions_are_independent() -> None:
    """Pairs of draws at positions p and p + 1, two tokens pooled by rank halves, against the product law."""
    sampler = Sampler(SamplingParams(seed=3), np.zeros(0, np.int32), VOCAB)
    tokens = [sampler.sample(LOGITS, position).token for position in range(DRAWS)]
    top = {int(token) for token in ORDER[:2]}
    share = float(expected(1.0, ORDER)[ORDER[:2]].sum())
    pairs = np.zeros(4, np.int64)
    for left, right in zip(tokens[::2], tokens[1::2], strict=True):
        pairs[2 * (left in top) + (right in top)] += 1
    law = np.array([(1 - share) ** 2, (1 - share) * share, share * (1 - share), share**2])
    assert p_value(pairs, law) > 0.001
