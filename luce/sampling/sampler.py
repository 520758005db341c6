"""One request's sampler: logits in, one token out, as a pure function of logits, history, seed and position.

The steps and their order are vLLM's: log-probabilities of the unprocessed logits; the mask of what the answer's form
allows; minimum-tokens mask, unless that leaves nothing; logit bias; penalties; temperature; min-p, top-k, top-p; then
the draw. The draw is Gumbel-max with counter-based
noise (:mod:`luce.sampling.philox`), so it depends on no generator state and no earlier call.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from luce.engines.seam import Mask, SampledToken
from luce.errors import DeviceError
from luce.sampling.distribution import Ids, Row, keep, log_normaliser, top_ids
from luce.sampling.masks import allowed_ids
from luce.sampling.parameters import SamplingParams
from luce.sampling.penalties import Penalties
from luce.sampling.philox import gumbel

__all__ = ["NonFiniteLogitsError", "Sampler"]


class NonFiniteLogitsError(DeviceError):
    """A row of logits holds NaN or infinity. Only that row's request fails."""

    def __init__(self, position: int, count: int, of: int) -> None:
        super().__init__(
            f"logits for position {position} are not finite: {count} of {of} values are NaN or infinite"
        )
        self.position = position


class Sampler:
    """Sampling state of one open slot: its parameters and the tokens generated so far, by position.

    The commit rule of the seam holds here too: sampling a position, or :meth:`truncate`, voids every token at
    or past it, and the penalties' counts follow.
    """

    def __init__(
        self,
        params: SamplingParams,
        prompt_ids: npt.NDArray[np.integer],
        num_token_ids: int,
        generated: Iterable[int] = (),
    ) -> None:
        """``prompt_ids`` [T]; ``num_token_ids`` is the tokenizer's count, ids past it are never sampled.

        ``generated`` are tokens that the request already has when its slot is opened again: they stand at the
        positions from T on and count as generated, not as prompt. The seed must be resolved.
        """
        assert params.seed is not None or params.greedy, "resolve the seed with with_seed() first"
        self.params = params
        self._start = len(prompt_ids)
        self._num_ids = num_token_ids
        self._generated: list[int] = []
        self._penalties = Penalties(params, prompt_ids, num_token_ids)
        self._masked: Ids = np.array(sorted({*params.stop_token_ids, *params.eos_token_ids}), np.intp)
        self._masked = self._masked[self._masked < num_token_ids]
        self._bias_ids: Ids = np.array([token for token, _ in params.logit_bias], np.intp)
        self._bias = np.array([bias for _, bias in params.logit_bias], np.float64)
        self.recall(generated)

    @property
    def generated(self) -> tuple[int, ...]:
        """Tokens generated so far; the first stands at position T."""
        return tuple(self._generated)

    def truncate(self, position: int) -> None:
        """Forget every generated token at or past absolute ``position``."""
        while len(self._generated) > max(position - self._start, 0):
            self._penalties.remove(self._generated.pop())

    def record(self, token: int, position: int) -> None:
        """Make ``token`` the one generated at ``position``, which voids what stood there and after it."""
        assert self._start <= position <= self._start + len(self._generated), "a gap before this position"
        self.truncate(position)
        self._generated.append(token)
        self._penalties.add(token)

    def recall(self, generated: Iterable[int]) -> None:
        """Make ``generated`` the tokens generated so far, in place of what is recorded: the state of a sampler that
        recorded them one by one."""
        self.truncate(self._start)
        for position, token in enumerate(generated, self._start):
            self.record(token, position)

    def sample(
        self, logits: npt.NDArray[np.float32], position: int, mask: Mask | None = None
    ) -> SampledToken:
        """Choose the token at absolute ``position`` (the number of tokens before it) and record it.

        ``logits`` float32 [V] with V >= ``num_token_ids`` is not changed. No gap before ``position``. ``mask``: what
        may be chosen, over ``num_token_ids`` ids; log-probabilities do not see it.

        Raises:
            NonFiniteLogitsError: a logit of a real token id is NaN or infinite. Nothing is recorded.
            DeviceError: the mask allows nothing. Nothing is recorded.
        """
        row = np.ascontiguousarray(logits[: self._num_ids])
        bad = int(len(row) - np.count_nonzero(np.isfinite(row)))
        if bad:
            raise NonFiniteLogitsError(position, bad, len(row))
        self.truncate(position)
        token = self._choose(row, position, mask)
        self.record(token, position)
        return self._with_logprobs(row, token)

    def _choose(self, row: npt.NDArray[np.float32], position: int, mask: Mask | None) -> int:
        params = self.params
        masks = len(self._masked) > 0 and len(self._generated) < params.min_tokens
        if params.greedy and not (masks or mask is not None or len(self._bias) or self._penalties.active):
            return int(row.argmax())
        allowed = None if mask is None else self._allowed(mask, masks=masks)
        x: Row = row.astype(np.float64)
        if masks and allowed is None:
            x[self._masked] = -np.inf
        if len(self._bias):
            x[self._bias_ids] += self._bias
        if self._penalties.active:
            self._penalties.apply(x)
        if allowed is not None:
            x = x[allowed]
        if params.greedy:
            best = int(x.argmax())
            return best if allowed is None else int(allowed[best])
        x /= params.temperature
        kept = keep(x, min_p=params.min_p, top_k=params.top_k, top_p=params.top_p)
        ids = kept if allowed is None else allowed[kept]
        if len(ids) == 1:
            return int(ids[0])
        assert params.seed is not None
        return int(ids[(x[kept] + gumbel(params.seed, position, ids)).argmax()])

    def _allowed(self, mask: Mask, *, masks: bool) -> Ids:
        """Ids, ascending, that may be chosen. ``masks``: none that ends the answer, while there is another."""
        allowed = allowed_ids(mask, self._num_ids)
        if masks:
            longer = allowed.copy()
            longer[self._masked] = False
            if longer.any():  # a form that is complete ends the answer, however short it is
                allowed = longer
        return np.flatnonzero(allowed)

    def _with_logprobs(self, row: npt.NDArray[np.float32], token: int) -> SampledToken:
        wanted = self.params.logprobs
        if wanted is None:
            return SampledToken(token)
        normaliser = log_normaliser(row)
        best = top_ids(row, wanted) if wanted else ()
        return SampledToken(
            token,
            float(row[token]) - normaliser,
            tuple((int(index), float(row[index]) - normaliser) for index in best),
        )
