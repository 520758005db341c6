"""One answer's constraint: free thinking up to its budget, a clean close, then the form of the answer."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

import attrs

from luce.constraints.grammar import Grammar, GrammarState
from luce.engines.seam import Mask
from luce.errors import RequestError
from luce.sampling.masks import mask_of
from luce.text.tokenizer import Tokenizer

__all__ = ["AnswerConstraint", "AnswerRules", "ThinkingRules"]

_LATE = 3
"""Tokens by which a budget may be exceeded so that the last character of the thought is whole."""


@attrs.frozen(eq=False)
class ThinkingRules:
    """A think block that the prompt opened, and how it ends."""

    close: int
    """The token that ends it."""
    budget: int | None
    """Tokens after which the end is forced."""
    before: tuple[int, ...]
    """What is written before it then, unless the thought ends with a line end."""
    behind: tuple[int, ...]
    """And behind it."""
    tokenizer: Tokenizer


@attrs.frozen(eq=False)
class AnswerRules:
    """What an answer is held to. Immutable; every answer makes its own :class:`AnswerConstraint` of it."""

    num_ids: int
    eos: frozenset[int]
    thinking: ThinkingRules | None = None
    """None: the answer does not begin in a think block."""
    whole: Grammar | None = None
    """Of everything behind the think block, the end of the answer included."""
    call: Grammar | None = None
    """Of what follows ``trigger``, which may come any number of times in text that is free otherwise."""
    trigger: int | None = None
    """The token that begins a call. Where calls are part of ``whole`` it ends thinking, too."""
    field: str = ""
    """Of the request, that asks for the grammar, for errors."""


class AnswerConstraint:
    """Implements :class:`luce.constraints.constraint.Constraint`."""

    def __init__(self, rules: AnswerRules) -> None:
        self._rules = rules
        self._grammar: GrammarState | None = None
        self._forced: Sequence[int] = ()
        """Tokens that have to come next."""
        self._thought = 0
        """Tokens of thinking so far."""
        self._thinking = rules.thinking is not None
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._token: int | None = None
        """Taken and not computed."""
        self.complete = False
        self.mask: Mask | None = None
        if rules.thinking is None:
            self._begin_answer()
        elif rules.thinking.budget == 0:
            self._force(rules.thinking, b"")

    def take(self, token: int) -> bool:
        if self._forced:
            self._force_next(self._forced[1:])
            return False
        if self._thinking:
            return self._think(token)
        if self._grammar is None:
            if self._rules.call is not None and token == self._rules.trigger:
                self._enter(self._rules.call)
            return False
        if token in self._rules.eos:
            self.complete = True
            return False
        self._token = token
        return True

    def compute(self) -> None:
        assert self._grammar is not None and self._token is not None, "no token was taken"
        token, self._token = self._token, None
        try:
            stopped = self._grammar.advance(token)
        except RequestError as error:
            field = self._rules.field
            raise RequestError(f"{field}: {error}", field=field) from None
        self.mask = self._grammar.mask
        if stopped and self._rules.call is not None:  # a call is over, and text is free again
            self._grammar = self.mask = None

    def fork(self) -> AnswerConstraint:
        other = AnswerConstraint(self._rules)
        other._grammar = self._grammar.fork() if self._grammar is not None else None
        other._forced, other._thought, other._thinking = self._forced, self._thought, self._thinking
        other._decoder.setstate(self._decoder.getstate())
        other.complete, other.mask = self.complete, self.mask
        return other

    def _think(self, token: int) -> bool:
        rules = self._rules.thinking
        assert rules is not None
        if token == rules.close:
            self._thinking = False
            self._begin_answer()
            return False
        if token == self._rules.trigger and self._begins_call(token):
            return self._grammar is not None and self._token is not None
        self._thought += 1
        if rules.budget is not None and self._thought + _LATE >= rules.budget:
            written = rules.tokenizer.token_bytes(token)
            self._decoder.decode(written)
            whole = not self._decoder.getstate()[0]
            if self._thought >= rules.budget and (whole or self._thought >= rules.budget + _LATE):
                self._force(rules, written)
        return False

    def _begins_call(self, token: int) -> bool:
        """A call within the block ends it, as the parser of answers has it."""
        rules = self._rules
        if rules.call is not None:
            self._thinking = False
            self._enter(rules.call)
            return True
        if rules.whole is None or not _allows(rules.whole.first, token):
            return False
        self._thinking = False
        self._enter(rules.whole)
        self._token = token
        return True

    def _force(self, rules: ThinkingRules, last: bytes) -> None:
        """End thinking behind a token of these bytes."""
        self._thinking = False
        before = () if last.endswith(b"\n") else rules.before
        self._force_next((*before, rules.close, *rules.behind))

    def _force_next(self, tokens: Sequence[int]) -> None:
        self._forced = tokens
        if tokens:
            self.mask = mask_of([tokens[0]], self._rules.num_ids)
        else:
            self._begin_answer()

    def _begin_answer(self) -> None:
        self.mask = None
        if self._rules.whole is not None:
            self._enter(self._rules.whole)

    def _enter(self, grammar: Grammar) -> None:
        self._grammar = grammar.start()
        self.mask = grammar.first


def _allows(mask: Mask, token: int) -> bool:
    return bool(mask[token // 32] >> (token % 32) & 1)
