"""Answers of POST /v1/completions: the whole object, and the chunks of a stream."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from luce.engines.loaded import LoadedModel
from luce.engines.seam import SampledToken
from luce.http.answering.reader import Finish, Piece
from luce.http.answering.several import AnswersReader
from luce.http.openai.chat_response import Usage, usage_of
from luce.http.openai.choice_events import WholeAnswer
from luce.http.openai.prepare_completion import CompletionJob
from luce.http.openai.text_logprobs import TextLogprobs, TextOffsets
from luce.text.answer_parts import Content, Part

__all__ = ["Completion", "CompletionChunk", "CompletionWriter"]


class CompletionChoice(Struct, frozen=True):
    text: str
    index: int
    finish_reason: str | None
    logprobs: TextLogprobs | None = None


class Completion(Struct, frozen=True):
    id: str
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage
    object: Literal["text_completion"] = "text_completion"
    system_fingerprint: str | None = None


class CompletionChunk(Struct, frozen=True):
    id: str
    created: int
    model: str
    choices: list[CompletionChoice]
    object: Literal["text_completion"] = "text_completion"
    system_fingerprint: str | None = None
    usage: Usage | UnsetType | None = UNSET


class CompletionWriter:
    """Writes the answers of one request as JSON, in parts."""

    def __init__(self, request: CompletionJob, reader: AnswersReader, model: LoadedModel) -> None:
        self._request = request
        self._reader = reader
        self._model = model.name
        self._fingerprint = model.fingerprint
        answers = [
            (submission, echo)
            for job, echo in zip(request.jobs, request.echoes, strict=True)
            for submission in job.submissions
        ]
        self._echoes = [echo for _, echo in answers]
        self._offsets = [
            TextOffsets(model.tokenizer, len(echo), skip_special=submission.skip_special_tokens)
            for submission, echo in answers
        ]
        self._wants_logprobs = request.jobs[0].submission.params.logprobs is not None

    @property
    def usage(self) -> Usage:
        return usage_of(self._reader.counts)

    def answer(self, answers: Sequence[WholeAnswer]) -> bytes:
        """All answers at once."""
        choices = [
            CompletionChoice(
                self._echoes[i] + _text(whole.parts), i, whole.finish.reason, self._logprobs(i, whole.tokens)
            )
            for i, whole in enumerate(answers)
        ]
        return msgspec.json.encode(
            Completion(
                id=self._request.jobs[0].submission.id,
                created=self._request.jobs[0].created,
                model=self._model,
                choices=choices,
                usage=self.usage,
                system_fingerprint=self._fingerprint,
            )
        )

    def first_chunks(self) -> list[bytes]:
        """What the answers begin with."""
        echoes = enumerate(self._echoes)
        return [self._chunk([CompletionChoice(echo, i, None)]) for i, echo in echoes if echo]

    def piece_chunks(self, index: int, piece: Piece) -> list[bytes]:
        """A piece of an answer; none when there is nothing in it that the client would see."""
        text = _text(piece.parts)
        logprobs = self._logprobs(index, piece.tokens) if piece.tokens else None
        if not text and logprobs is None:
            return []
        return [self._chunk([CompletionChoice(text, index, None, logprobs)])]

    def finish_chunk(self, index: int, finish: Finish) -> bytes:
        return self._chunk([CompletionChoice("", index, finish.reason)])

    def usage_chunk(self) -> bytes | None:
        """The last chunk, with no choices, when the client asked for it."""
        return self._chunk([], self.usage) if self._request.include_usage else None

    def _chunk(self, choices: list[CompletionChoice], usage: Usage | None = None) -> bytes:
        shown: Any = UNSET
        if self._request.include_usage or self._request.continuous_usage:
            shown = usage if usage is not None or not self._request.continuous_usage else self.usage
        return msgspec.json.encode(
            CompletionChunk(
                id=self._request.jobs[0].submission.id,
                created=self._request.jobs[0].created,
                model=self._model,
                choices=choices,
                system_fingerprint=self._fingerprint,
                usage=shown,
            )
        )

    def _logprobs(self, index: int, tokens: Sequence[SampledToken]) -> TextLogprobs | None:
        return self._offsets[index].of(tokens) if self._wants_logprobs else None


def _text(parts: Iterable[Part]) -> str:
    return "".join(part.text for part in parts if isinstance(part, Content))
