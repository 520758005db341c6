"""Log-probabilities of an answer's tokens as /v1/completions shows them."""

from __future__ import annotations

import codecs
from collections.abc import Iterable

from msgspec import Struct

from luce.engines.seam import SampledToken
from luce.http.openai.logprobs import FLOOR
from luce.http.openai.token_names import token_name
from luce.text.tokenizer import Tokenizer

__all__ = ["TextLogprobs", "TextOffsets"]


class TextLogprobs(Struct, frozen=True):
    tokens: list[str]
    """As text; what is part of a character as ``bytes:\\\\xe2``."""
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    """Of the most likely tokens and the chosen one."""
    text_offset: list[int]
    """Characters of the answer's text before the token. Stop strings that are cut off count."""


class TextOffsets:
    """Writes the log-probabilities of one answer, piece by piece. Belongs to its answer.

    Args:
        start: characters that the text begins with.
        skip_special: special tokens have no text.
    """

    def __init__(self, tokenizer: Tokenizer, start: int, *, skip_special: bool) -> None:
        self._tokenizer = tokenizer
        self._place = start
        self._skip_special = skip_special
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def of(self, tokens: Iterable[SampledToken]) -> TextLogprobs:
        """Of the next tokens."""
        found = TextLogprobs([], [], [], [])
        for one in tokens:
            chosen = FLOOR if one.logprob is None else max(one.logprob, FLOOR)
            name = self._name(one.token)
            found.tokens.append(name)
            found.token_logprobs.append(chosen)
            # The likeliest of several tokens of the same text is the first one.
            top = {self._name(other): max(logprob, FLOOR) for other, logprob in reversed(one.top)}
            found.top_logprobs.append(dict(reversed(top.items())) | {name: chosen})
            found.text_offset.append(self._place)
            if not (self._skip_special and self._tokenizer.is_special(one.token)):
                self._place += len(self._decoder.decode(self._tokenizer.token_bytes(one.token)))
        return found

    def _name(self, token: int) -> str:
        return token_name(self._tokenizer, token)
