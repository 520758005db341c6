"""The arithmetic of the fake model: what a row is worth and which token follows it.

The fake has the shape of a hybrid transformer, with 64-bit integers for tensors. Row q of a sequence has the input
``content(q)``, a hash of its token (or of its image row's bits) and its three M-RoPE positions. From it come

- the recurrent state ``S(q) = mix(S(q-1), content(q))``, kept per slot like DeltaNet's;
- the row's value ``v(q) = mix(S(q), A(q-1))``, kept in the slot's block like keys and values;
- the attention sum ``A(q) = v(0) + ... + v(q)`` modulo 2**64, read through the block table.

The token after row q is a hash of ``S(q)``, ``A(q)``, q, the seed and, where penalties are asked for, of the tokens
generated before. Any mix-up of tokens, image rows, positions, blocks, states or histories therefore shows as a wrong
token, and neither chunks nor batches nor block sizes change a right one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from luce.engines.seam import Mask, SampledToken, SlotSpec
from luce.sampling.masks import allowed_ids
from luce.sampling.parameters import SamplingParams

__all__ = [
    "EMPTY",
    "MASK",
    "generated_content",
    "history_key",
    "mix",
    "prompt_content",
    "sampled",
    "seed_key",
]

MASK = (1 << 64) - 1
EMPTY = 0x243F6A8885A308D3
"""S(-1). A(-1) is 0."""
_MIX = 0x9E3779B97F4A7C15
_TOKEN, _T, _H, _W = 0xD1342543DE82EF95, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x27D4EB2F165667C5


def mix(state: int, value: int) -> int:
    """One step of a 64-bit multiplicative hash. Two of them carry every bit into the low ones."""
    state = ((state ^ value) * _MIX) & MASK
    return state ^ (state >> 29)


def generated_content(token: int, position: int) -> int:
    """Content of a generated token; its M-RoPE position is the same on all three axes."""
    return (token * _TOKEN + position * (_T + _H + _W)) & MASK


def prompt_content(spec: SlotSpec, start: int, stop: int) -> list[int]:
    """Contents of the prompt rows [start, stop). Every image that they touch must be encoded."""
    values = spec.token_ids[start:stop].astype(np.uint64) * np.uint64(_TOKEN)
    for span in spec.spans:
        low, high = max(start, span.start), min(stop, span.start + span.length)
        if low < high:
            rows = spec.image_rows[span.image]
            assert rows is not None, f"image {span.image} is not encoded"
            values[low - start : high - start] = _row_bits(rows[low - span.start : high - span.start])
    t, h, w = spec.positions[:, start:stop].astype(np.uint64)
    values += t * np.uint64(_T) + h * np.uint64(_H) + w * np.uint64(_W)
    contents: list[int] = values.tolist()
    return contents


def _row_bits(
    rows: np.ndarray[tuple[int, ...], np.dtype[np.float32]],
) -> np.ndarray[tuple[int, ...], np.dtype[np.uint64]]:
    """One 64-bit value of the exact bits of every image row [n, hidden]."""
    bits = np.ascontiguousarray(rows).view(np.uint32).astype(np.uint64)
    weights = np.arange(1, bits.shape[1] + 1, dtype=np.uint64) * np.uint64(_MIX) | np.uint64(1)
    total: np.ndarray[tuple[int, ...], np.dtype[np.uint64]] = (bits * weights).sum(axis=1, dtype=np.uint64)
    return total


def seed_key(params: SamplingParams | None) -> int:
    """What the sampling parameters add to every draw: the seed of a sampled request, nothing for a greedy one."""
    if params is None or params.greedy:
        return 0
    assert params.seed is not None, "resolve the seed with with_seed() first"
    return (params.seed & MASK) ^ _TOKEN


def history_key(generated: Sequence[int]) -> int:
    """What the tokens generated before add to a draw where there are penalties: how often each of them came."""
    return mix(sum(mix(token, _T) for token in generated) & MASK, _H)


def sampled(
    draw: int,
    vocab_size: int,
    params: SamplingParams | None,
    forced: int | None,
    mask: Mask | None = None,
) -> SampledToken:
    """The token of a 64-bit draw, or the scripted one where the mask allows it, with made-up log-probabilities if they
    are wanted."""
    token = draw % vocab_size if forced is None else forced
    if mask is not None:
        allowed = allowed_ids(mask, vocab_size)
        if forced is None or not allowed[forced]:
            ids = np.flatnonzero(allowed)
            token = int(ids[draw % len(ids)])
    if params is None or params.logprobs is None:
        return SampledToken(token)
    best = -((draw >> 32) % 1024) / 1024.0
    top = tuple(
        ((token + rank) % vocab_size, best - rank) for rank in range(min(params.logprobs, vocab_size))
    )
    return SampledToken(token, best, top)
