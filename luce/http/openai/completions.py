"""POST /v1/completions: submit every prompt, then write the answers as they come or once all are whole."""

from __future__ import annotations

from quart import Request, Response

from luce.engines.seam import SampledToken
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
        forms = [job.form for job in wanted.jobs for _ in job.submissions]
        reader = AnswersReader([AnswerReader(*each) for each in zip(handles, forms, strict=True)])
        writer = CompletionWriter(wanted, reader, self._answering.model)
        if wanted.stream:
            events = CompletionEvents(reader, writer)
            response = event_response(events, self._answering.options.keep_alive)
        else:
            response = Response(writer.answer(await _all(reader)), content_type="application/json")
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


async def _all(reader: AnswersReader) -> list[Whole]:
    """The whole answers."""
    texts: list[list[str]] = [[] for _ in reader.readers]
    tokens: list[list[SampledToken]] = [[] for _ in reader.readers]
    ends: dict[int, Finish] = {}
    while (found := await reader.next()) is not None:
        place, item = found
        if isinstance(item, Finish):
            ends[place] = item
        else:
            texts[place] += [part.text for part in item.parts if isinstance(part, Content)]
            tokens[place] += item.tokens
    return [("".join(texts[place]), tokens[place], ends[place]) for place in range(len(texts))]
