"""Answers of POST /v1/chat/completions: the whole object, and the chunks of a stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from luce.actors.submission import Handle
from luce.engines.loaded import LoadedModel
from luce.engines.seam import SampledToken
from luce.http.openai.prepare import ChatJob
from luce.text.tokenizer import Tokenizer

__all__ = ["ChatWriter", "token_logprobs"]

FLOOR = -9999.0
"""Stands for log(0): JSON has no infinity. The value is vLLM's."""


class PromptTokens(Struct, frozen=True):
    cached_tokens: int
    """Whose rows came from the prefix cache."""


class Usage(Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokens


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


class AnswerMessage(Struct, frozen=True):
    content: str
    role: Literal["assistant"] = "assistant"
    refusal: None = None


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


class ChatWriter:
    """Writes the answer of one request as JSON. Counts its tokens."""

    def __init__(self, job: ChatJob, handle: Handle, model: LoadedModel) -> None:
        self._job = job
        self._tokenizer = model.tokenizer
        self._usage = handle.usage
        self._model = model.name
        fingerprint = getattr(model.engine, "fingerprint", None)
        self._fingerprint = None if fingerprint is None else str(fingerprint)
        self._logprobs: list[TokenLogprob] = []
        self.completion_tokens = 0

    @property
    def wants_logprobs(self) -> bool:
        return self._job.top_logprobs is not None

    @property
    def usage(self) -> Usage:
        prompt = self._usage.prompt_tokens
        return Usage(
            prompt,
            self.completion_tokens,
            prompt + self.completion_tokens,
            PromptTokens(self._usage.cached_tokens),
        )

    def answer(self, text: str, tokens: Sequence[SampledToken], reason: str) -> bytes:
        """The whole answer at once."""
        self.completion_tokens = len(tokens)
        choice = Choice(AnswerMessage(text), reason, self._logprobs_of(tokens))
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

    def delta_chunk(self, text: str, tokens: Sequence[SampledToken]) -> bytes | None:
        """A piece of the answer; None when there is nothing that the client would see."""
        self.completion_tokens += len(tokens)
        if not text and not (tokens and self.wants_logprobs):
            return None
        return self._chunk([ChunkChoice(AnswerDelta(content=text), logprobs=self._logprobs_of(tokens))])

    def finish_chunk(self, reason: str) -> bytes:
        return self._chunk([ChunkChoice(AnswerDelta(), finish_reason=reason)])

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
