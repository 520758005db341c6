"""POST /v1/responses, without a memory: every request holds its whole conversation."""

from __future__ import annotations

from quart import Request, Response

from luce.http.answering.one import AnswerEvents, whole_answer
from luce.http.answering.reader import AnswerReader
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
            events = AnswerEvents(reader, writer)
            response = event_response(events, self._answering.options.keep_alive, broken=writer.broken)
        else:
            response = Response(await whole_answer(reader, writer), content_type="application/json")
        response.headers["x-luce-seed"] = str(asked.job.submission.params.seed)
        return response
