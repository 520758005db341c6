"""From a request's sampling parameters to what the sampler kernels read: one SAMPLE record and its lists."""

from __future__ import annotations

import math
from fractions import Fraction

import attrs
import numpy as np
import numpy.typing as npt

from luce.engines.qwen35.device.descriptors import (
    ADJUST,
    SAMPLE,
    SAMPLE_GREEDY,
    SAMPLE_LOGPROBS,
    SAMPLE_MASK,
    SAMPLE_MIN_P,
    SAMPLE_PENALTIES,
    SAMPLE_TOP_P,
)
from luce.sampling.parameters import SamplingParams

__all__ = ["SampleTemplate"]

_MASK32 = 0xFFFFFFFF


def _adjusts(pairs: list[tuple[int, float]], num_token_ids: int) -> npt.NDArray[np.void]:
    """ADJUST entries, ascending by id; ids that are never drawn are left out."""
    kept = sorted((token, add) for token, add in pairs if token < num_token_ids)
    entries = np.zeros(len(kept), ADJUST)
    entries["id"] = [token for token, _ in kept]
    entries["add"] = [add for _, add in kept]
    return entries


@attrs.frozen(eq=False)
class SampleTemplate:
    """Everything of a slot's SAMPLE record that stays the same from draw to draw, made once when the slot is opened."""

    record: npt.NDArray[np.void]
    """SAMPLE, zero-dimensional; row, slot, position, lists and mask are not filled in."""
    bias: npt.NDArray[np.void]
    """ADJUST entries of ids with a bias."""
    ends: npt.NDArray[np.void]
    """ADJUST entries of the ids that ``min_tokens`` holds back."""
    min_tokens: int

    @classmethod
    def of(cls, params: SamplingParams | None, first_generated: int, num_token_ids: int) -> SampleTemplate:
        """``params`` with the seed resolved; None draws the most likely token and reports its log-probability, as
        :class:`luce.engines.qwen35.slots.Greedy`. ``first_generated``: position of the first generated token.
        ``num_token_ids``: ids that may be drawn."""
        record = np.zeros((), SAMPLE)
        record["first_generated"] = first_generated
        record["temperature"], record["repetition"] = 1.0, 1.0
        if params is None:
            record["flags"] = SAMPLE_GREEDY | SAMPLE_LOGPROBS
            return cls(record, np.zeros(0, ADJUST), np.zeros(0, ADJUST), 0)
        assert params.seed is not None or params.greedy, "resolve the seed with with_seed() first"
        flags = 0
        if params.greedy:
            flags |= SAMPLE_GREEDY
        else:
            seed = params.seed or 0
            record["temperature"] = params.temperature
            record["seed"] = seed & _MASK32, (seed >> 32) & _MASK32
            record["top_k"] = min(max(params.top_k, 0), num_token_ids)
            if params.min_p > 0.0:
                flags |= SAMPLE_MIN_P
                record["log_min_p"] = math.log(params.min_p)
            if params.top_p < 1.0:
                flags |= SAMPLE_TOP_P
                record["top_p"] = math.ceil(Fraction(params.top_p) * 2**64)
        if params.penalises:
            flags |= SAMPLE_PENALTIES
            record["repetition"] = params.repetition_penalty
            record["presence"], record["frequency"] = params.presence_penalty, params.frequency_penalty
        if params.logprobs is not None:
            flags |= SAMPLE_LOGPROBS
            record["logprobs"] = params.logprobs
        record["flags"] = flags
        ends = [(token, 0.0) for token in {*params.stop_token_ids, *params.eos_token_ids}]
        return cls(
            record,
            _adjusts(list(params.logit_bias), num_token_ids),
            _adjusts(ends, num_token_ids),
            params.min_tokens,
        )

    @property
    def reports(self) -> bool:
        """Draws come with log-probabilities."""
        return bool(int(self.record["flags"]) & SAMPLE_LOGPROBS)

    def fill(
        self,
        sample: npt.NDArray[np.void],
        lists: npt.NDArray[np.void],
        used: int,
        *,
        row: int,
        slot: int,
        position: int,
        mask: int | None = None,
    ) -> int:
        """Write the draw at ``position`` into ``sample``, a view of one SAMPLE, and its entries into ``lists`` from
        ``used`` on. Returns how many entries are used then. ``mask``: row of the masks."""
        sample[...] = self.record
        sample["row"], sample["slot"], sample["position"] = row, slot, position
        if mask is not None:
            sample["flags"] |= SAMPLE_MASK
            sample["mask"] = mask
        held_back = position - int(self.record["first_generated"]) < self.min_tokens
        for name, entries in (("bias", self.bias), ("ends", self.ends if held_back else self.ends[:0])):
            sample[name], sample[f"num_{name}"] = used, len(entries)
            lists[used : used + len(entries)] = entries
            used += len(entries)
        return used
