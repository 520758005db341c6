"""Answers of POST /v1/chat/completions: the whole object, and the chunks of a stream."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from luce.engines.loaded import LoadedModel
from luce.engines.seam import SampledToken
from luce.http.answering.reader import Finish, Piece, TokenCounts
from luce.http.answering.several import AnswersReader
from luce.http.openai.choice_events import WholeAnswer
from luce.http.openai.logprobs import Logprobs, token_logprobs
from luce.http.openai.prepare import ChatJob
from luce.text.answer_parts import Content, Part, Reasoning, ToolCall

__all__ = ["ChatWriter", "Usage", "usage_of"]


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


def usage_of(counts: TokenCounts) -> Usage:
    """What OpenAI's APIs of choices say of a request's cost."""
    return Usage(
        counts.prompt,
        counts.completion,
        counts.total,
        PromptTokens(counts.cached),
        AnswerTokens(counts.reasoning),
    )


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
    """Writes the answer of one request as JSON, in parts."""

    def __init__(self, chat: ChatJob, reader: AnswersReader, model: LoadedModel) -> None:
        self._chat = chat
        self._reader = reader
        self._wants_logprobs = chat.job.submission.params.logprobs is not None
        self._tokenizer = model.tokenizer
        self._model = model.name
        self._fingerprint = model.fingerprint
        self._calls = [0] * len(reader.readers)
        """Tool calls of each choice so far."""

    @property
    def usage(self) -> Usage:
        return usage_of(self._reader.counts)

    def answer(self, answers: Sequence[WholeAnswer]) -> bytes:
        """All choices at once."""
        return msgspec.json.encode(
            Answer(
                id=self._chat.job.submission.id,
                created=self._chat.job.created,
                model=self._model,
                choices=[self._choice(index, whole) for index, whole in enumerate(answers)],
                usage=self.usage,
                system_fingerprint=self._fingerprint,
            )
        )

    def first_chunks(self) -> list[bytes]:
        """The role of each choice."""
        role = AnswerDelta(role="assistant", content="")
        return [self._chunk([ChunkChoice(role, index)]) for index in range(len(self._calls))]

    def piece_chunks(self, index: int, piece: Piece) -> list[bytes]:
        """Chunks for a piece of a choice; none when there is nothing in it that the client would see.

        Log-probabilities of its tokens go with the first one, alone if their text is held back.
        """
        deltas = list(self._deltas(index, piece.parts))
        logprobs = self._logprobs_of(piece.tokens) if piece.tokens else None
        if logprobs is not None and not deltas:
            deltas = [AnswerDelta()]
        chunks = []
        for delta in deltas:
            chunks.append(self._chunk([ChunkChoice(delta, index, logprobs)]))
            logprobs = None
        return chunks

    def finish_chunk(self, index: int, finish: Finish) -> bytes:
        return self._chunk([ChunkChoice(AnswerDelta(), index, finish_reason=finish.reason)])

    def _choice(self, index: int, whole: WholeAnswer) -> Choice:
        found = whole.parts
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
        return Choice(message, whole.finish.reason, self._logprobs_of(whole.tokens), index)

    def _deltas(self, choice: int, parts: Sequence[Part]) -> Iterator[AnswerDelta]:
        for part in parts:
            if isinstance(part, Reasoning):
                yield AnswerDelta(reasoning_content=part.text)
            elif isinstance(part, Content):
                yield AnswerDelta(content=part.text)
            else:
                index = self._calls[choice]
                self._calls[choice] += 1
                named = CalledFunction("", part.name)
                yield AnswerDelta(tool_calls=[Call(named, _call_id(), "function", index)])
                yield AnswerDelta(tool_calls=[Call(CalledFunction(part.arguments), index=index)])

    def usage_chunk(self) -> bytes | None:
        """The last chunk, with no choices, when the client asked for it."""
        if not self._chat.include_usage:
            return None
        return self._chunk([], self.usage)

    def _chunk(self, choices: list[ChunkChoice], usage: Usage | None = None) -> bytes:
        shown: Any = UNSET
        if self._chat.include_usage or self._chat.continuous_usage:
            shown = usage if usage is not None or not self._chat.continuous_usage else self.usage
        return msgspec.json.encode(
            Chunk(
                id=self._chat.job.submission.id,
                created=self._chat.job.created,
                model=self._model,
                choices=choices,
                system_fingerprint=self._fingerprint,
                usage=shown,
            )
        )

    def _logprobs_of(self, tokens: Sequence[SampledToken]) -> Logprobs | None:
        return Logprobs(token_logprobs(tokens, self._tokenizer)) if self._wants_logprobs else None


def _call_id() -> str:
    return f"call_{uuid.uuid4().hex[:24]}"
