"""Grammars over tokens: llguidance, with what it may cost bounded, and what was compiled kept.

A grammar is compiled once; every answer gets a copy of the compiled matcher, which takes microseconds. The library's
own limits bound what compiling and each mask may cost; the text of a grammar is bounded here.
"""

from __future__ import annotations

import json
import re
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from luce.engines.seam import Mask
from luce.errors import RequestError, printable
from luce.text.tokenizer import Tokenizer

__all__ = ["MAX_GRAMMAR_BYTES", "Grammar", "GrammarCompiler", "GrammarState"]

MAX_GRAMMAR_BYTES = 1 << 17
"""A schema, expression or grammar as text. It compiles in a fraction of a second at worst."""
KEPT, KEPT_BYTES = 128, 4 << 20
"""Compiled grammars that are kept, and bytes of their texts together."""
# More than the library's own: a hundred optional properties need it. Some 50 ms a mask at worst.
_LIMITS = LLParserLimits(step_max_items=500_000, step_lexer_fuel=1_000_000, verbose_errors=False)
_REASON = 600
"""Characters of the library's reasons that are passed on."""


@attrs.frozen(eq=False)
class Grammar:
    """A compiled grammar at its beginning. Immutable; safe on several threads."""

    _matcher: LLMatcher
    first: Mask
    """What an answer may begin with."""
    num_ids: int

    def start(self) -> GrammarState:
        return GrammarState(self._matcher.deep_copy(), self.first, self.num_ids)


class GrammarState:
    """How far one answer is in its grammar."""

    def __init__(self, matcher: LLMatcher, mask: Mask, num_ids: int) -> None:
        self._matcher = matcher
        self._num_ids = num_ids
        self.mask = mask

    def advance(self, token: int) -> bool:
        """Take in a token and find the next mask. Slow: for a worker thread. True: the grammar is complete and allows
        nothing more but the answer's end.

        Raises:
            RequestError: the library gives up.
        """
        matcher = self._matcher
        if not matcher.consume_token(token):
            raise _failed(matcher, f"token {token} is refused")
        self.mask = _mask(matcher, self._num_ids)
        return matcher.is_stopped()

    def fork(self) -> GrammarState:
        return GrammarState(self._matcher.deep_copy(), self.mask, self._num_ids)


class GrammarCompiler:
    """Compiles grammars for one tokenizer and keeps what it compiled.

    Args:
        tokenizer: whose tokens grammars run over. Added tokens stand for themselves alone, never for their text.
        eos_token_ids: what ends an answer once its grammar is complete.
    """

    def __init__(self, tokenizer: Tokenizer, eos_token_ids: Sequence[int]) -> None:
        self.num_ids = tokenizer.num_token_ids
        self._tokenizer = tokenizer
        self._eos = list(eos_token_ids)
        self._library = self._build()
        self._kept: OrderedDict[str, Grammar] = OrderedDict()
        self._kept_bytes = 0
        self._lock = threading.Lock()
        """Of what is kept: worker threads share it."""

    def compile(self, grammars: Sequence[dict[str, Any]], field: str, *, composed: bool = True) -> Grammar:
        """Compile grammars in llguidance's own form, of which the first one is the whole; for worker threads.

        Args:
            composed: what may be wrong is not written as the client wrote it: places in it are left out of messages.

        Raises:
            RequestError: it is malformed, too large or too costly; names ``field``.
        """
        text = json.dumps({"grammars": list(grammars)})
        if len(text) > MAX_GRAMMAR_BYTES:
            raise RequestError(
                f"{field} takes {len(text)} bytes as a grammar; at most {MAX_GRAMMAR_BYTES} are taken",
                field=field,
            )
        with self._lock:
            found = self._kept.get(text)
            if found is not None:
                self._kept.move_to_end(text)
                return found
        grammar = self._compiled(text, field, composed)
        with self._lock:
            if text not in self._kept:
                self._kept[text] = grammar
                self._kept_bytes += len(text)
            while len(self._kept) > KEPT or self._kept_bytes > KEPT_BYTES:
                dropped, _ = self._kept.popitem(last=False)
                self._kept_bytes -= len(dropped)
        return grammar

    @property
    def kept(self) -> int:
        """Compiled grammars at hand."""
        return len(self._kept)

    def _compiled(self, text: str, field: str, composed: bool) -> Grammar:
        matcher = LLMatcher(self._library, text, log_level=0, limits=_LIMITS)
        try:
            if matcher.is_error():
                raise _failed(matcher, "it is no grammar", composed=composed)
            first = _mask(matcher, self.num_ids)
        except RequestError as error:
            raise RequestError(f"{field}: {error}", field=field) from None
        return Grammar(matcher, first, self.num_ids)

    def _build(self) -> LLTokenizer:
        """About a second for 250,000 tokens, all of it under the interpreter lock: at start-up, not while serving."""
        return LLTokenizer(
            TokenizerWrapper(_Tokens(self._tokenizer, self._eos)),
            n_vocab=self.num_ids,
            eos_token=self._eos,
        )


class _Tokens:
    """A tokenizer as llguidance wants to see it."""

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, eos: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id = eos[0]
        self.tokens = [tokenizer.token_bytes(index) for index in range(tokenizer.num_token_ids)]
        self.special_token_ids = sorted({*tokenizer.special_ids.values(), *eos})

    def __call__(self, text: bytes | str) -> list[int]:
        if isinstance(text, bytes):
            text = text.decode("utf-8", "replace")
        return self._tokenizer.encode_text(text)


def _mask(matcher: LLMatcher, num_ids: int) -> Mask:
    mask = np.zeros((num_ids + 31) // 32, np.uint32)
    matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
    if matcher.is_error() or not mask.any():
        raise _failed(matcher, "no token fits")
    mask.setflags(write=False)
    return mask


_PLACE = re.compile(r"(?:at )?\d+\(\d+\): ")
_EXTRACT = re.compile(r"\n\s*\d+ \| [^\n]*\n[^\n]*\^\s*\Z")
"""The line of the grammar at its end, with an arrow below."""


def _failed(matcher: LLMatcher, otherwise: str, *, composed: bool = False) -> RequestError:
    """In one line: the library quotes the grammar, with what its writer put into it and with arrows below."""
    said = matcher.get_error().replace("<non-verbose/>", "")
    if composed and (place := _PLACE.match(said)):
        said = _EXTRACT.sub("", said[place.end() :])
    said = printable(" ".join(said.split())) or otherwise
    if said == "NoExtensionBias":
        said = "no text fits it: a rule that needs itself never ends"
    if len(said) > _REASON:
        said = said[:_REASON] + "…"
    return RequestError(said)
