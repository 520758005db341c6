"""When a sampled token ends an answer. Stop strings are text and are found after detokenising."""

from __future__ import annotations

from typing import Literal

from luce.sampling.parameters import SamplingParams

__all__ = ["FinishReason", "finish_reason"]

FinishReason = Literal["stop", "length"]


def finish_reason(params: SamplingParams, token: int, num_generated: int) -> FinishReason | None:
    """Whether the answer ends with ``token``, the ``num_generated``-th generated token (counted from 1).

    A stop id needs ``min_tokens`` tokens before it, just as the sampler masks it until then. A stop id at the
    last allowed place is "stop", not "length".
    """
    stops = token in params.stop_token_ids or (token in params.eos_token_ids and not params.ignore_eos)
    if stops and num_generated > params.min_tokens:
        return "stop"
    if params.max_tokens is not None and num_generated >= params.max_tokens:
        return "length"
    return None
