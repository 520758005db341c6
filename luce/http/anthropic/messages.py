"""POST /v1/messages and POST /v1/messages/count_tokens, Anthropic's API."""

from __future__ import annotations

import msgspec
from quart import Request, Response

from luce.http.answering.one import AnswerEvents, whole_answer
from luce.http.answering.reader import AnswerReader
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
                AnswerEvents(reader, writer),
                self._answering.options.keep_alive,
                silence=PING,
                broken=lambda error: event("error", msgspec.json.encode(anthropic_error(error, name))),
            )
        else:
            response = Response(await whole_answer(reader, writer), content_type="application/json")
        response.headers["x-luce-seed"] = str(asked.job.submission.params.seed)
        return response

    async def count(self, request: Request) -> Response:
        """How many tokens the prompt of a body has."""
        count = await self._answering.prepared(request, count_messages)
        return Response(msgspec.json.encode(TokenCount(count)), content_type="application/json")
