"""Answers of POST /v1/messages: the whole message, and the events of a stream."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Literal

import msgspec
from msgspec import Struct

from luce.engines.loaded import LoadedModel
from luce.http.answering.reader import AnswerReader, Finish, Piece
from luce.http.anthropic.blocks import Block, BlockEvent, Blocks
from luce.http.anthropic.prepare import MessagesJob
from luce.http.sse import event
from luce.text.answer_parts import Part

__all__ = ["PING", "MessageWriter", "TokenCount"]

StopReason = Literal["end_turn", "max_tokens", "model_context_window_exceeded", "stop_sequence", "tool_use"]

PING = event("ping", b'{"type":"ping"}')
"""Sent while there is nothing to say."""


class OutputTokens(Struct, frozen=True):
    thinking_tokens: int
    """In think blocks."""


class Usage(Struct, frozen=True):
    """``input_tokens`` are those that were computed: the whole prompt is the sum of the three, as Anthropic counts."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: OutputTokens


class Message(Struct, frozen=True):
    id: str
    model: str
    content: list[Block]
    usage: Usage
    stop_reason: StopReason | None = None
    stop_sequence: str | None = None
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"


class MessageStart(Struct, tag_field="type", tag="message_start", frozen=True):
    message: Message


class MessageEnd(Struct, frozen=True):
    stop_reason: StopReason
    stop_sequence: str | None


class MessageDelta(Struct, tag_field="type", tag="message_delta", frozen=True):
    delta: MessageEnd
    usage: Usage


class MessageStop(Struct, tag_field="type", tag="message_stop", frozen=True):
    pass


class TokenCount(Struct, frozen=True):
    """The answer of POST /v1/messages/count_tokens."""

    input_tokens: int


class MessageWriter:
    """Writes the answer of one request, in parts."""

    def __init__(self, asked: MessagesJob, reader: AnswerReader, model: LoadedModel) -> None:
        self._asked = asked
        self._reader = reader
        self._model = model.name
        self._blocks = Blocks(omit_thinking=asked.omit_thinking)

    def start(self) -> bytes:
        """The first events, before it is known how much of the prompt is cached."""
        return _events([MessageStart(self._message([], None))]) + PING

    def take(self, piece: Piece) -> bytes:
        """Events for a piece of the answer."""
        return _events(self._taken(piece.parts))

    def keep(self, piece: Piece) -> None:
        """Take in a piece of an answer that is given whole."""
        for _ in self._taken(piece.parts):
            pass

    def end(self, finish: Finish) -> bytes:
        """The last events."""
        end = self._end(finish)
        return _events([*self._blocks.end(), MessageDelta(end, self._usage()), MessageStop()])

    def whole(self, finish: Finish) -> bytes:
        """The message of all parts that were kept, as one object."""
        for _ in self._blocks.end():
            pass
        return msgspec.json.encode(self._message(self._blocks.blocks, self._end(finish)))

    def _taken(self, parts: Iterable[Part]) -> Iterator[BlockEvent]:
        for part in parts:
            yield from self._blocks.take(part)

    def _message(self, content: list[Block], end: MessageEnd | None) -> Message:
        return Message(
            id=self._asked.job.submission.id,
            model=self._model,
            content=content,
            usage=self._usage(),
            stop_reason=None if end is None else end.stop_reason,
            stop_sequence=None if end is None else end.stop_sequence,
        )

    def _usage(self) -> Usage:
        counts = self._reader.counts
        return Usage(
            input_tokens=counts.prompt - counts.cached,
            cache_creation_input_tokens=0,
            cache_read_input_tokens=counts.cached,
            output_tokens=counts.completion,
            output_tokens_details=OutputTokens(counts.reasoning),
        )

    def _end(self, finish: Finish) -> MessageEnd:
        if finish.reason == "tool_calls":
            return MessageEnd("tool_use", None)
        if finish.reason == "length":
            most = self._asked.job.submission.params.max_tokens
            whole = most is None or most < self._asked.max_tokens
            return MessageEnd("model_context_window_exceeded" if whole else "max_tokens", None)
        if finish.stop is not None:
            return MessageEnd("stop_sequence", finish.stop)
        return MessageEnd("end_turn", None)


def _events(structs: Iterable[Any]) -> bytes:
    """Each encoded at once, before what it holds grows."""
    return b"".join(event(type(one).__struct_config__.tag, msgspec.json.encode(one)) for one in structs)
