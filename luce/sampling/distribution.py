"""Exact sets and log-probabilities over one row of logits.

Every result is one fixed expression over the row itself. Where a set depends on a sum (top-p), the sum is
over integers, so no order of addition can change it and a device kernel can find the same set.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import numpy.typing as npt

__all__ = ["Ids", "Row", "keep", "log_normaliser", "top_ids"]

Ids = npt.NDArray[np.intp]
Row = npt.NDArray[np.float64]

_GROUP = 64
_ONE = 2.0**40
"""Fixed-point one of a probability weight. A vocabulary of 2**22 ids still sums within 63 bits."""


def top_ids(values: npt.NDArray[np.floating], k: int) -> Ids:
    """Indices [min(k, n)] of the k largest of ``values`` [n], largest first, equal values by lower index."""
    n, pool = len(values), values
    groups = n // _GROUP
    if k < groups:  # k group maxima are k values, so the k-th of them is no more than the k-th of all
        pool = values[: groups * _GROUP].reshape(_GROUP, groups).max(axis=0)
    if k < n:
        threshold = np.partition(pool, len(pool) - k)[len(pool) - k]
        candidates = np.flatnonzero(values >= threshold)
    else:
        candidates = np.arange(n)
    order = np.argsort(-values[candidates], kind="stable")
    return candidates[order[:k]]


def keep(x: Row, *, min_p: float, top_k: int, top_p: float) -> Ids:
    """Ids, ascending, that survive min-p, then top-k, then top-p of the scaled logits ``x`` [V].

    Each filter sees the distribution that the filter before it left, renormalised, as in vLLM. Top-k keeps
    exactly k and top-p the smallest number of most likely ids whose probability reaches ``top_p``; of equal
    values the lower ids stay. At least one id is kept. ``x`` may hold -inf but one entry must be finite.
    """
    best = float(x.max())
    ids = np.flatnonzero(x >= best + math.log(min_p)) if min_p > 0.0 else np.arange(len(x))
    if 0 < top_k < len(ids):
        ids = ids[np.sort(top_ids(x[ids], top_k))]
    if top_p < 1.0:
        ids = ids[_nucleus(x[ids] - best, top_p)]
    return ids


def _nucleus(shifted: Row, top_p: float) -> Ids:
    """Indices, ascending, of the smallest most-likely set reaching ``top_p``; the maximum is 0."""
    weights = np.floor(np.exp(shifted) * _ONE).astype(np.int64)
    total = int(weights.sum())
    target = math.ceil(Fraction(top_p) * total)
    # Everything at or under this weight sums to at most total - target, so the set lies above it.
    light = (total - target) // len(weights)
    candidates = np.flatnonzero(shifted >= shifted[weights > light].min())
    ordered = candidates[np.argsort(-shifted[candidates], kind="stable")]
    reached = int(np.searchsorted(np.cumsum(weights[ordered]), target))
    return np.sort(ordered[: reached + 1])


def log_normaliser(logits: npt.NDArray[np.float32]) -> float:
    """log Σ exp of one contiguous row of finite logits [V], in float64."""
    values = logits.astype(np.float64)
    best = values.max()
    return float(best + np.log(np.exp(values - best).sum()))
