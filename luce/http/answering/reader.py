"""An answer as its endpoint reads it: parts, counts, and how it ended, the same for every API."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from typing import Literal

import attrs

from luce.actors.submission import Handle
from luce.actors.token_buffer import End
from luce.engines.seam import SampledToken
from luce.errors import LuceError, RequestError
from luce.http.answering.answer_form import AnswerForm
from luce.text.answer_parts import Part, Reasoning, ToolCall

__all__ = ["AnswerReader", "Finish", "Piece", "TokenCounts"]

FinishReason = Literal["stop", "length", "tool_calls"]


@attrs.frozen(eq=False)
class Piece:
    """What is certain of the answer since the last piece."""

    parts: tuple[Part, ...]
    tokens: tuple[SampledToken, ...]
    """Their text may lag behind: parts may be empty."""
    thinking: bool = False
    """The tokens lie in a think block that is told apart, its closing tag included."""


@attrs.frozen
class Finish:
    """The end of a whole answer."""

    reason: FinishReason
    stop: str | None = None
    """The stop string that ended it, if one did."""


@attrs.frozen
class TokenCounts:
    prompt: int
    cached: int
    """Of the prompt, those whose rows came from the prefix cache."""
    completion: int
    reasoning: int
    """Of the completion, those in think blocks that were told apart."""

    @property
    def total(self) -> int:
        return self.prompt + self.completion


class AnswerReader:
    """Reads the answer of one request, and counts its tokens."""

    def __init__(self, handle: Handle, form: AnswerForm) -> None:
        self._handle = handle
        self._form = form
        self._parser = form.parser()
        self._completion = 0
        self._reasoning = 0
        self._end: FinishReason | End | None = None
        self.num_calls = 0
        """Tool calls so far."""

    @property
    def counts(self) -> TokenCounts:
        usage = self._handle.usage
        return TokenCounts(usage.prompt_tokens, usage.cached_tokens, self._completion, self._reasoning)

    @property
    def choice(self) -> int:
        """Which of several choices for one prompt it is."""
        return self._handle.choice

    @property
    def over(self) -> bool:
        """The next read waits for nothing: it is the end."""
        return self._end is not None

    async def next(self) -> Piece | Finish:
        """The next piece that holds something, then the end, for ever. Cancelling this wait loses nothing.

        Raises:
            LuceError: what ended an answer that is not whole, after its last piece.
        """
        while (item := self.take()) is None:
            await self.arrival()
        return item

    def arrival(self) -> Awaitable[None]:
        """Await it at once, when :meth:`take` has found nothing: returns when there may be something, here or in
        another answer that was submitted together with this one."""
        return self._handle.arrival()

    def let_go(self) -> None:
        """Its end has been read. It may be whole before its request has ended: that needs its slot no more."""
        if self._handle.end is None:
            self._handle.cancel()

    def take(self) -> Piece | Finish | None:
        """What :meth:`next` gives, without waiting; None when there is nothing yet."""
        while self._end is None:
            item = self._handle.take()
            if item is None:
                return None
            if isinstance(item, End):
                self._end = item
                parts = self._wanted(self._parser.flush(ended=item.reason == "stop"))
                piece = Piece(parts, ())
            else:
                thinking = self._parser.thinking
                self._completion += len(item.tokens)
                self._reasoning += len(item.tokens) * thinking
                piece = Piece(self._wanted(self._parser.feed(item.text)), item.tokens, thinking)
                if self._complete:
                    self._end = "tool_calls"
            if piece.parts or piece.tokens:
                return piece
        return Finish(self._reason(self._end), self._end.stop if isinstance(self._end, End) else None)

    @property
    def _complete(self) -> bool:
        """The client wants no more: it asked for one call at most, and has it."""
        return self._form.one_call and self.num_calls > 0

    def _wanted(self, parts: Iterable[Part]) -> tuple[Part, ...]:
        """What the client asked to see of the parts; counts calls."""
        found: list[Part] = []
        for part in parts:
            if self._complete:
                break
            self.num_calls += isinstance(part, ToolCall)
            if self._form.show_reasoning or not isinstance(part, Reasoning):
                found.append(part)
        return tuple(found)

    def _reason(self, end: FinishReason | End) -> FinishReason:
        """The finish reason of a whole answer; raises what ended one that is not."""
        if not isinstance(end, End):
            return end
        if end.reason == "stop":
            return "tool_calls" if self.num_calls else "stop"
        if end.reason == "length":
            return "length"
        raise end.error or _unexplained(end)


def _unexplained(end: End) -> LuceError:
    if end.reason == "cancelled":
        # Clients ask again by themselves after 409, 429 and 5xx, and that is not what whoever cancelled it wants.
        return RequestError("the answer was cancelled", status=499, code="cancelled")
    return LuceError("the answer failed")
