"""Answers of POST /v1/responses: the whole object, and the events of a stream."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec
from msgspec import Struct

from luce.engines.loaded import LoadedModel
from luce.engines.seam import SampledToken
from luce.http.answering.reader import AnswerReader, Finish, Piece
from luce.http.errors import error_body
from luce.http.openai.logprobs import TokenLogprob, token_logprobs
from luce.http.openai.responses.items import Event, Item, Items
from luce.http.openai.responses.prepare import ResponsesJob
from luce.http.sse import event
from luce.text.answer_parts import Content

__all__ = ["ResponseWriter"]

ResponseStatus = Literal["in_progress", "completed", "incomplete", "failed"]


class InputTokens(Struct, frozen=True):
    cached_tokens: int
    """Whose rows came from the prefix cache."""
    cache_write_tokens: int = 0


class OutputTokens(Struct, frozen=True):
    reasoning_tokens: int
    """In think blocks."""


class Usage(Struct, frozen=True):
    input_tokens: int
    input_tokens_details: InputTokens
    output_tokens: int
    output_tokens_details: OutputTokens
    total_tokens: int


class Failure(Struct, frozen=True):
    message: str
    code: Literal["server_error"] = "server_error"


class Incomplete(Struct, frozen=True):
    reason: Literal["max_output_tokens"] = "max_output_tokens"


class ResponseObject(Struct, frozen=True, kw_only=True):
    """All fields of OpenAI's ``Response`` that say something here."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    completed_at: int | None
    status: ResponseStatus
    error: Failure | None
    incomplete_details: Incomplete | None
    model: str
    output: Sequence[Item]
    usage: Usage | None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: Mapping[str, str]
    parallel_tool_calls: bool
    previous_response_id: None = None
    background: Literal[False] = False
    prompt_cache_key: str | None
    reasoning: Mapping[str, Any]
    safety_identifier: str | None
    service_tier: Literal["default"] = "default"
    store: Literal[False] = False
    temperature: float
    text: Mapping[str, Any]
    tool_choice: Any
    tools: Sequence[Any]
    top_logprobs: int
    top_p: float
    truncation: Literal["disabled"] = "disabled"
    user: str | None


class _Whole(Event, frozen=True, kw_only=True):
    response: ResponseObject


class Created(_Whole, tag_field="type", tag="response.created", frozen=True, kw_only=True):
    pass


class InProgress(_Whole, tag_field="type", tag="response.in_progress", frozen=True, kw_only=True):
    pass


class Completed(_Whole, tag_field="type", tag="response.completed", frozen=True, kw_only=True):
    pass


class IncompleteEnd(_Whole, tag_field="type", tag="response.incomplete", frozen=True, kw_only=True):
    pass


class Failed(_Whole, tag_field="type", tag="response.failed", frozen=True, kw_only=True):
    pass


class ErrorEvent(Event, tag_field="type", tag="error", frozen=True, kw_only=True):
    message: str
    code: str | None
    param: str | None
    error: Mapping[str, Any]
    """The same once more, as clients of all of OpenAI's streams look for it."""


class ResponseWriter:
    """Writes the answer of one request, in parts."""

    def __init__(self, asked: ResponsesJob, reader: AnswerReader, model: LoadedModel) -> None:
        self._asked = asked
        self._reader = reader
        self._model = model
        self._numbers = itertools.count()
        self._items = Items(self._numbers)
        self._pending: list[SampledToken] = []
        """Tokens outside think blocks whose text has not come yet, where their log-probabilities are asked for."""

    def start(self) -> bytes:
        """The first events."""
        begun = self._object("in_progress")
        return _events(
            [Created(response=begun, **self._number()), InProgress(response=begun, **self._number())]
        )

    def take(self, piece: Piece) -> bytes:
        """Events for a piece of the answer; none when there is nothing in it to show."""
        return _events(self._taken(piece))

    def keep(self, piece: Piece) -> None:
        """Take in a piece of an answer that is given whole."""
        for _ in self._taken(piece):
            pass

    def end(self, finish: Finish) -> bytes:
        """The last events."""
        last = list(self._items.end(self._item_status(finish), self._logprobs()))
        ended = self._ended(finish)
        kind = Completed if ended.status == "completed" else IncompleteEnd
        return _events([*last, kind(response=ended, **self._number())])

    def whole(self, finish: Finish) -> bytes:
        """The object of all pieces that were kept."""
        for _ in self._items.end(self._item_status(finish), self._logprobs()):
            pass
        return msgspec.json.encode(self._ended(finish))

    def broken(self, error: Exception) -> bytes:
        """The last events of an answer that cannot be finished."""
        said = error_body(error)["error"]
        last = list(self._items.end("incomplete", self._logprobs()))
        failed = self._object("failed", error=Failure(said["message"]), usage=self._usage())
        ended = Failed(response=failed, **self._number())
        told = ErrorEvent(
            message=said["message"], code=said["code"], param=said["param"], error=said, **self._number()
        )
        return _events([*last, ended, told])

    def _taken(self, piece: Piece) -> Iterator[Event]:
        if self._asked.wants_logprobs and not piece.thinking:
            self._pending += piece.tokens
        for part in piece.parts:
            if isinstance(part, Content):
                yield from self._items.take(part, self._logprobs())
            else:
                self._pending.clear()
                yield from self._items.take(part)

    def _logprobs(self) -> Sequence[TokenLogprob]:
        found, self._pending = token_logprobs(self._pending, self._model.tokenizer), []
        return found

    def _number(self) -> dict[str, int]:
        return {"sequence_number": next(self._numbers)}

    def _item_status(self, finish: Finish) -> Literal["completed", "incomplete"]:
        return "incomplete" if finish.reason == "length" else "completed"

    def _ended(self, finish: Finish) -> ResponseObject:
        if finish.reason == "length":
            return self._object("incomplete", incomplete=Incomplete(), usage=self._usage())
        return self._object("completed", usage=self._usage())

    def _usage(self) -> Usage:
        counts = self._reader.counts
        return Usage(
            counts.prompt,
            InputTokens(counts.cached),
            counts.completion,
            OutputTokens(counts.reasoning),
            counts.total,
        )

    def _object(
        self,
        status: ResponseStatus,
        *,
        error: Failure | None = None,
        incomplete: Incomplete | None = None,
        usage: Usage | None = None,
    ) -> ResponseObject:
        told, job = self._asked.told, self._asked.job
        params = job.submission.params
        return ResponseObject(
            id=job.submission.id,
            created_at=job.created,
            completed_at=int(time.time()) if status == "completed" else None,
            status=status,
            error=error,
            incomplete_details=incomplete,
            model=self._model.name,
            output=tuple(self._items.done),
            usage=usage,
            instructions=told.get("instructions"),
            max_output_tokens=told.get("max_output_tokens"),
            max_tool_calls=told.get("max_tool_calls"),
            metadata=told.get("metadata") or {},
            parallel_tool_calls=told.get("parallel_tool_calls") is not False,
            prompt_cache_key=told.get("prompt_cache_key"),
            reasoning={"effort": None, "summary": None} | (told.get("reasoning") or {}),
            safety_identifier=told.get("safety_identifier"),
            temperature=params.temperature,
            text=_text(told.get("text")),
            tool_choice=told.get("tool_choice") or "auto",
            tools=[{"parameters": None, "strict": None} | tool for tool in told.get("tools") or ()],
            top_logprobs=told.get("top_logprobs") or 0,
            top_p=params.top_p,
            user=told.get("user"),
        )


def _text(told: Mapping[str, Any] | None) -> dict[str, Any]:
    given = told or {}
    return {
        "format": given.get("format") or {"type": "text"},
        "verbosity": given.get("verbosity") or "medium",
    }


def _events(structs: Iterable[Any]) -> bytes:
    return b"".join(event(type(one).__struct_config__.tag, msgspec.json.encode(one)) for one in structs)
