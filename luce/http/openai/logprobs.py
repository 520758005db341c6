"""Log-probabilities of an answer's tokens, as OpenAI shows them."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from luce.engines.seam import SampledToken
from luce.text.tokenizer import Tokenizer

__all__ = ["FLOOR", "Logprobs", "TokenLogprob", "token_logprobs"]

FLOOR = -9999.0
"""Stands for log(0): JSON has no infinity. The value is vLLM's."""


class Alternative(Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[Alternative]


class Logprobs(Struct, frozen=True):
    content: list[TokenLogprob]
    refusal: None = None


def token_logprobs(tokens: Sequence[SampledToken], tokenizer: Tokenizer) -> list[TokenLogprob]:
    """The log-probabilities of tokens, each with its bytes: a token may be part of a character."""
    return [
        TokenLogprob(
            *_shown(tokenizer, token.token, token.logprob),
            [Alternative(*_shown(tokenizer, other, logprob)) for other, logprob in token.top],
        )
        for token in tokens
    ]


def _shown(tokenizer: Tokenizer, token: int, logprob: float | None) -> tuple[str, float, list[int]]:
    data = tokenizer.token_bytes(token)
    return data.decode("utf-8", "replace"), FLOOR if logprob is None else max(logprob, FLOOR), list(data)
