"""Answers of POST /v1/chat/completions: the whole object, and the chunks of a stream."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from luce.actors.submission import Handle
from luce.engines.loaded import LoadedModel
from luce.engines.seam import SampledToken
from luce.http.openai.logprobs import Logprobs, token_logprobs
from luce.http.openai.prepare import ChatJob
from luce.text.answer_parts import Content, Part, Reasoning, ToolCall

__all__ = ["ChatWriter"]


class PromptTokens(Struct, frozen=True):
    cached_tokens: int
    """Whose rows came from the prefix cache."""


class AnswerTokens(Struct, frozen=True):
    reasoning_tokens: int
    """In think blocks that were told apart."""


class Usage(Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokens
    completion_tokens_details: AnswerTokens


class CalledFunction(Struct, frozen=True):
    arguments: str
    """A JSON object, or in a stream a piece of one."""
    name: str | UnsetType = UNSET


class Call(Struct, frozen=True):
    """A tool call, whole or in a stream's delta; there the first has all but its arguments, the next only those."""

    function: CalledFunction
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET
    index: int | UnsetType = UNSET


class AnswerMessage(Struct, frozen=True):
    content: str | None
    role: Literal["assistant"] = "assistant"
    refusal: None = None
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[Call] | UnsetType = UNSET


class Choice(Struct, frozen=True):
    message: AnswerMessage
    finish_reason: str
    logprobs: Logprobs | None = None
    index: int = 0


class Answer(Struct, frozen=True):
    id: str
    created: int
    model: str
    choices: list[Choice]
    usage: Usage
    object: Literal["chat.completion"] = "chat.completion"
    system_fingerprint: str | None = None


class AnswerDelta(Struct, frozen=True):
    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[Call] | UnsetType = UNSET


class ChunkChoice(Struct, frozen=True):
    delta: AnswerDelta
    index: int = 0
    logprobs: Logprobs | None = None
    finish_reason: str | None = None


class Chunk(Struct, frozen=True):
    id: str
    created: int
    model: str
    choices: list[ChunkChoice]
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    system_fingerprint: str | None = None
    usage: Usage | UnsetType | None = UNSET


class ChatWriter:
    """Writes the answer of one request as JSON, in parts. Counts its tokens."""

    def __init__(self, job: ChatJob, handle: Handle, model: LoadedModel) -> None:
        self._job = job
        self._parser = job.form.parser()
        self._tokenizer = model.tokenizer
        self._usage = handle.usage
        self._model = model.name
        fingerprint = getattr(model.engine, "fingerprint", None)
        self._fingerprint = None if fingerprint is None else str(fingerprint)
        self._calls = 0
        self.completion_tokens = 0
        self._reasoning_tokens = 0

    @property
    def wants_logprobs(self) -> bool:
        return self._job.top_logprobs is not None

    @property
    def complete(self) -> bool:
        """The client wants no more: it asked for one call at most, and has it."""
        return self._job.form.one_call and self._calls > 0

    @property
    def usage(self) -> Usage:
        prompt = self._usage.prompt_tokens
        return Usage(
            prompt,
            self.completion_tokens,
            prompt + self.completion_tokens,
            PromptTokens(self._usage.cached_tokens),
            AnswerTokens(self._reasoning_tokens),
        )

    def take(self, text: str, tokens: Sequence[SampledToken]) -> list[Part]:
        """Parts of the answer that are certain after the engine's next piece."""
        self.completion_tokens += len(tokens)
        self._reasoning_tokens += len(tokens) * self._parser.thinking
        return self._wanted(self._parser.feed(text))

    def rest(self, reason: str) -> list[Part]:
        """The last parts, of an answer that ended for that reason."""
        return [] if self.complete else self._wanted(self._parser.flush(ended=reason == "stop"))

    def finish_reason(self, reason: str) -> str:
        """The reason as clients know it."""
        called = self._calls and (reason == "stop" or self.complete)
        return "tool_calls" if called else reason

    def answer(self, parts: Iterable[Part], tokens: Sequence[SampledToken], reason: str) -> bytes:
        """The whole answer at once, of all its parts and tokens."""
        found = list(parts)
        reasoning = "".join(part.text for part in found if isinstance(part, Reasoning))
        content = "".join(part.text for part in found if isinstance(part, Content))
        calls = [
            Call(CalledFunction(part.arguments, part.name), _call_id(), "function")
            for part in found
            if isinstance(part, ToolCall)
        ]
        message = AnswerMessage(
            content=content if content or not calls else None,
            reasoning_content=reasoning or UNSET,
            tool_calls=calls or UNSET,
        )
        choice = Choice(message, self.finish_reason(reason), self._logprobs_of(tokens))
        return msgspec.json.encode(
            Answer(
                id=self._job.submission.id,
                created=self._job.created,
                model=self._model,
                choices=[choice],
                usage=self.usage,
                system_fingerprint=self._fingerprint,
            )
        )

    def first_chunk(self) -> bytes:
        return self._chunk([ChunkChoice(AnswerDelta(role="assistant", content=""))])

    def delta_chunks(self, parts: Sequence[Part], tokens: Sequence[SampledToken] = ()) -> list[bytes]:
        """Chunks for parts of the answer; none when there is nothing that the client would see.

        Log-probabilities of the tokens go with the first one, alone if their text is held back.
        """
        deltas = list(self._deltas(parts))
        logprobs = self._logprobs_of(tokens) if tokens else None
        if logprobs is not None and not deltas:
            deltas = [AnswerDelta()]
        chunks = []
        for delta in deltas:
            chunks.append(self._chunk([ChunkChoice(delta, logprobs=logprobs)]))
            logprobs = None
        return chunks

    def finish_chunk(self, reason: str) -> bytes:
        return self._chunk([ChunkChoice(AnswerDelta(), finish_reason=self.finish_reason(reason))])

    def _wanted(self, parts: Iterable[Part]) -> list[Part]:
        """What the client asked to see of the parts; counts calls."""
        found: list[Part] = []
        for part in parts:
            if self.complete:
                break
            self._calls += isinstance(part, ToolCall)
            if self._job.form.show_reasoning or not isinstance(part, Reasoning):
                found.append(part)
        return found

    def _deltas(self, parts: Sequence[Part]) -> Iterator[AnswerDelta]:
        index = self._calls - sum(isinstance(part, ToolCall) for part in parts)
        for part in parts:
            if isinstance(part, Reasoning):
                yield AnswerDelta(reasoning_content=part.text)
            elif isinstance(part, Content):
                yield AnswerDelta(content=part.text)
            else:
                named = CalledFunction("", part.name)
                yield AnswerDelta(tool_calls=[Call(named, _call_id(), "function", index)])
                yield AnswerDelta(tool_calls=[Call(CalledFunction(part.arguments), index=index)])
                index += 1

    def usage_chunk(self) -> bytes | None:
        """The last chunk, with no choices, when the client asked for it."""
        if not self._job.include_usage:
            return None
        return self._chunk([], self.usage)

    def _chunk(self, choices: list[ChunkChoice], usage: Usage | None = None) -> bytes:
        shown: Any = UNSET
        if self._job.include_usage or self._job.continuous_usage:
            shown = usage if usage is not None or not self._job.continuous_usage else self.usage
        return msgspec.json.encode(
            Chunk(
                id=self._job.submission.id,
                created=self._job.created,
                model=self._model,
                choices=choices,
                system_fingerprint=self._fingerprint,
                usage=shown,
            )
        )

    def _logprobs_of(self, tokens: Sequence[SampledToken]) -> Logprobs | None:
        return Logprobs(token_logprobs(tokens, self._tokenizer)) if self.wants_logprobs else None


def _call_id() -> str:
    return f"call_{uuid.uuid4().hex[:24]}"
