"""POST /v1/responses, without a memory: every request holds its whole conversation."""

from __future__ import annotations

from quart import Request, Response

from luce.http.answering.reader import AnswerReader, Finish
from luce.http.answering.start import Answering
from luce.http.openai.responses.prepare import prepare_response
from luce.http.openai.responses.response import ResponseWriter
from luce.http.sse import event_response

__all__ = ["Responses"]


class Responses:
    """The endpoint. One for the server; nothing of a request is kept here."""

    def __init__(self, answering: Answering) -> None:
        self._answering = answering

    async def __call__(self, request: Request) -> Response:
        asked, handle = await self._answering.start(request, prepare_response)
        reader = AnswerReader(handle, asked.job.form)
        writer = ResponseWriter(asked, reader, self._answering.model)
        if asked.stream:
            events = ResponseEvents(reader, writer)
            response = event_response(events, self._answering.options.keep_alive, broken=writer.broken)
        else:
            response = Response(await _whole(reader, writer), content_type="application/json")
        response.headers["x-luce-seed"] = str(asked.job.submission.params.seed)
        return response


class ResponseEvents:
    """The events of one streamed answer."""

    def __init__(self, reader: AnswerReader, writer: ResponseWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._ended = False

    def first(self) -> bytes:
        return self._writer.start()

    async def next(self) -> bytes:
        while not self._ended:
            item = await self._reader.next()
            if isinstance(item, Finish):
                self._ended = True
                return self._writer.end(item)
            events = self._writer.take(item)
            if events:
                return events
        return b""


async def _whole(reader: AnswerReader, writer: ResponseWriter) -> bytes:
    while not isinstance(item := await reader.next(), Finish):
        writer.keep(item)
    return writer.whole(item)
