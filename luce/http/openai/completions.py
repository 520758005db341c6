"""POST /v1/completions: submit every prompt, then write the answers as they come or once all are whole."""

from __future__ import annotations

from collections.abc import Sequence

import trio
from quart import Request, Response

from luce.engines.seam import SampledToken
from luce.errors import LuceError
from luce.http.answering.reader import AnswerReader, Finish
from luce.http.answering.several import AnswersReader
from luce.http.answering.start import Answering
from luce.http.openai.completion_response import CompletionWriter
from luce.http.openai.prepare_completion import prepare_completion
from luce.http.sse import DONE, KEEP_ALIVE, data, event_response
from luce.text.answer_parts import Content

__all__ = ["Completions"]


class Completions:
    """The endpoint. One for the server; nothing of a request is kept here."""

    def __init__(self, answering: Answering) -> None:
        self._answering = answering

    async def __call__(self, request: Request) -> Response:
        wanted = await self._answering.prepared(request, prepare_completion)
        handles = self._answering.submit(request, wanted.jobs)
        readers = [AnswerReader(handle, job.form) for handle, job in zip(handles, wanted.jobs, strict=True)]
        writer = CompletionWriter(wanted, readers, self._answering.model)
        if wanted.stream:
            events = CompletionEvents(AnswersReader(readers), writer)
            response = event_response(events, self._answering.options.keep_alive)
        else:
            response = Response(writer.answer(await _all(readers)), content_type="application/json")
        response.headers["x-luce-seed"] = str(wanted.jobs[0].submission.params.seed)
        return response


class CompletionEvents:
    """The chunks of streamed answers."""

    def __init__(self, answers: AnswersReader, writer: CompletionWriter) -> None:
        self._answers = answers
        self._writer = writer
        self._ended = False

    def first(self) -> bytes:
        return b"".join(map(data, self._writer.echo_chunks())) or KEEP_ALIVE

    async def next(self) -> bytes:
        while not self._ended:
            found = await self._answers.next()
            if found is None:
                self._ended = True
                usage = self._writer.usage_chunk()
                return (data(usage) if usage is not None else b"") + DONE
            index, item = found
            if isinstance(item, Finish):
                return data(self._writer.finish_chunk(index, item))
            if (chunk := self._writer.piece_chunk(index, item)) is not None:
                return data(chunk)
        return b""


Whole = tuple[str, list[SampledToken], Finish]


async def _all(readers: Sequence[AnswerReader]) -> list[Whole]:
    """The whole answers. All are read at once, so that none waits for its client."""
    found: dict[int, Whole] = {}
    errors: list[LuceError] = []

    async def read(place: int, others: trio.CancelScope) -> None:
        try:
            found[place] = await _whole(readers[place])
        except LuceError as error:
            errors.append(error)
            others.cancel()

    async with trio.open_nursery() as nursery:
        for place in range(len(readers)):
            nursery.start_soon(read, place, nursery.cancel_scope)
    if errors:
        raise errors[0]
    return [found[place] for place in range(len(readers))]


async def _whole(reader: AnswerReader) -> Whole:
    text: list[str] = []
    tokens: list[SampledToken] = []
    while not isinstance(item := await reader.next(), Finish):
        text += [part.text for part in item.parts if isinstance(part, Content)]
        tokens += item.tokens
    return "".join(text), tokens, item
