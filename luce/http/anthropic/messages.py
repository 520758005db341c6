"""POST /v1/messages and POST /v1/messages/count_tokens, Anthropic's API."""

from __future__ import annotations

import msgspec
from quart import Request, Response

from luce.http.answering.reader import AnswerReader, Finish
from luce.http.answering.start import Answering
from luce.http.anthropic.prepare import count_messages, prepare_messages
from luce.http.anthropic.response import PING, MessageWriter, TokenCount
from luce.http.errors import anthropic_error
from luce.http.request_log import record_of
from luce.http.sse import event, event_response

__all__ = ["Messages"]


class Messages:
    """The endpoints. One for the server; nothing of a request is kept here."""

    def __init__(self, answering: Answering) -> None:
        self._answering = answering

    async def __call__(self, request: Request) -> Response:
        asked, handle = await self._answering.start(request, prepare_messages)
        reader = AnswerReader(handle, asked.job.form)
        writer = MessageWriter(asked, reader, self._answering.model)
        if asked.stream:
            name = record_of(request).id
            response = event_response(
                MessageEvents(reader, writer),
                self._answering.options.keep_alive,
                silence=PING,
                broken=lambda error: event("error", msgspec.json.encode(anthropic_error(error, name))),
            )
        else:
            response = Response(await _whole(reader, writer), content_type="application/json")
        response.headers["x-luce-seed"] = str(asked.job.submission.params.seed)
        return response

    async def count(self, request: Request) -> Response:
        """How many tokens the prompt of a body has."""
        count = await self._answering.prepared(request, count_messages)
        return Response(msgspec.json.encode(TokenCount(count)), content_type="application/json")


class MessageEvents:
    """The events of one streamed answer."""

    def __init__(self, reader: AnswerReader, writer: MessageWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._ended = False

    def first(self) -> bytes:
        return self._writer.start() + PING

    async def next(self) -> bytes:
        while not self._ended:
            item = await self._reader.next()
            if isinstance(item, Finish):
                self._ended = True
                return self._writer.end(item)
            events = self._writer.take(item.parts)
            if events:
                return events
        return b""


async def _whole(reader: AnswerReader, writer: MessageWriter) -> bytes:
    while not isinstance(item := await reader.next(), Finish):
        writer.keep(item.parts)
    return writer.whole(item)
