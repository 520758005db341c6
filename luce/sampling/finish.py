"""When a sampled token ends an answer. Stop strings are text and are found after detokenising."""

from __future__ import annotations

import math
from typing import Literal

from luce.sampling.parameters import SamplingParams

__all__ = ["FinishReason", "FinishRule"]

FinishReason = Literal["stop", "length"]


class FinishRule:
    """When the answer of one request ends: asked for every token, so what the parameters say is settled beforehand."""

    __slots__ = ("_ends", "_max_tokens", "_min_tokens")

    def __init__(self, params: SamplingParams) -> None:
        self._ends = frozenset(params.stop_token_ids + (() if params.ignore_eos else params.eos_token_ids))
        self._min_tokens = params.min_tokens
        self._max_tokens = math.inf if params.max_tokens is None else params.max_tokens

    def reason(self, token: int, num_generated: int) -> FinishReason | None:
        """Whether the answer ends with ``token``, the ``num_generated``-th generated token (counted from 1).

        A stop id needs ``min_tokens`` tokens before it, just as the sampler masks it until then. A stop id at the
        last allowed place is "stop", not "length".
        """
        if token in self._ends and num_generated > self._min_tokens:
            return "stop"
        return "length" if num_generated >= self._max_tokens else None
