"""Counts of generated tokens and the penalties that read them.

Repetition looks at prompt and generated tokens, presence and frequency at generated tokens only.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from luce.sampling.distribution import Ids, Row
from luce.sampling.parameters import SamplingParams

__all__ = ["Penalties", "TokenCounts"]


class TokenCounts:
    """How often each token was generated, kept as two dense arrays over the distinct tokens."""

    def __init__(self) -> None:
        self._index: dict[int, int] = {}
        self._ids = np.zeros(64, np.intp)
        self._counts = np.zeros(64, np.int64)

    def add(self, token: int) -> None:
        index = self._index.get(token)
        if index is None:
            index = self._index[token] = len(self._index)
            if index == len(self._ids):
                self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
                self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
            self._ids[index] = token
        self._counts[index] += 1

    def remove(self, token: int) -> None:
        self._counts[self._index[token]] -= 1

    def items(self) -> tuple[Ids, npt.NDArray[np.int64]]:
        """Distinct ids [n] and their counts [n], all at least 1."""
        n = len(self._index)
        ids, counts = self._ids[:n], self._counts[:n]
        present = counts > 0
        return ids[present], counts[present]


class Penalties:
    """The penalties of one request; changes logits only at the ids that were seen."""

    def __init__(
        self, params: SamplingParams, prompt_ids: npt.NDArray[np.integer], num_token_ids: int
    ) -> None:
        self.active = params.penalises
        self._params = params
        self._counts = TokenCounts()
        self._prompt: Ids = np.zeros(0, np.intp)
        if params.repetition_penalty != 1.0:
            distinct = np.unique(prompt_ids).astype(np.intp)
            self._prompt = distinct[(distinct >= 0) & (distinct < num_token_ids)]

    def add(self, token: int) -> None:
        if self.active:
            self._counts.add(token)

    def remove(self, token: int) -> None:
        if self.active:
            self._counts.remove(token)

    def apply(self, x: Row) -> None:
        """Repetition, then frequency and presence, in place on ``x`` float64 [V]."""
        ids, counts = self._counts.items()
        repetition = self._params.repetition_penalty
        if repetition != 1.0:
            seen = np.union1d(self._prompt, ids)
            values = x[seen]
            x[seen] = np.where(values > 0.0, values / repetition, values * repetition)
        x[ids] -= self._params.frequency_penalty * counts + self._params.presence_penalty
