"""What a request must produce on the fake engine, computed alone, row by row, with no blocks, slots or plans.

Tests compare served answers with this.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from luce.constraints.constraint import Constraint
from luce.engines.fake.content import (
    EMPTY,
    MASK,
    generated_content,
    history_key,
    mix,
    prompt_content,
    sampled,
    seed_key,
)
from luce.engines.seam import PatchImage, SampledToken, SlotSpec
from luce.sampling.philox import philox4x32

__all__ = ["Script", "encoded_rows", "reference_answer", "reference_tokens"]

Script = Callable[[SlotSpec, int], int | None]
"""(spec, index of the generated token from 0) -> its id, or None for the model's own."""


def encoded_rows(image: PatchImage, hidden: int) -> npt.NDArray[np.float32]:
    """Rows float32 [num_tokens, hidden] of a picture: noise in [-1, 1) keyed by its digest."""
    a, b, c, d, e = struct.unpack("<5I", hashlib.blake2b(image.digest, digest_size=20).digest())
    first, *_ = philox4x32((np.arange(image.num_tokens * hidden), a, b, c), (d, e))
    rows = first.astype(np.float64) * 2.0**-31 - 1.0
    return rows.astype(np.float32).reshape(image.num_tokens, hidden)


def reference_answer(
    spec: SlotSpec,
    count: int,
    *,
    vocab_size: int = 256,
    script: Script | None = None,
    constraint: Constraint | None = None,
) -> list[SampledToken]:
    """The first ``count`` generated tokens of a request whose images are all encoded, or fewer where ``constraint``,
    which is used up, ends the answer."""
    length, params = len(spec.token_ids), spec.sampling
    contents = prompt_content(spec, 0, length)
    state, attention, answer = EMPTY, 0, list[SampledToken]()
    generated: list[int] = spec.token_ids[length - spec.num_generated :].tolist()
    for row in range(length + count - 1):
        state = mix(state, contents[row])
        attention = (attention + mix(state, attention)) & MASK
        if row >= length - 1:
            key = seed_key(params)
            if params is not None and params.penalises:
                key ^= history_key(generated)
            draw = mix(mix(attention ^ state ^ key, row + 1), row + 1)
            forced = script(spec, len(generated)) if script else None
            mask = constraint.mask if constraint is not None else None
            answer.append(sampled(draw, vocab_size, params, forced, mask))
            generated.append(answer[-1].token)
            if constraint is not None:
                if constraint.take(answer[-1].token):
                    constraint.compute()
                if constraint.complete:
                    break
            contents.append(generated_content(answer[-1].token, row + 1 + spec.rope_delta))
    return answer


def reference_tokens(
    spec: SlotSpec, count: int, *, vocab_size: int = 256, script: Script | None = None
) -> list[int]:
    """Ids of :func:`reference_answer`."""
    return [token.token for token in reference_answer(spec, count, vocab_size=vocab_size, script=script)]
