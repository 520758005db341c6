"""POST /v1/chat/completions: submit, then write the answer as it comes or once it is whole."""

from __future__ import annotations

from quart import Request, Response

from luce.http.answering.reader import AnswerReader
from luce.http.answering.several import AnswersReader
from luce.http.answering.start import Answering
from luce.http.openai.chat_response import ChatWriter
from luce.http.openai.choice_events import ChoiceEvents, whole_answers
from luce.http.openai.prepare import prepare_chat
from luce.http.sse import event_response

__all__ = ["Chat"]


class Chat:
    """The endpoint. One for the server; nothing of a request is kept here."""

    def __init__(self, answering: Answering) -> None:
        self._answering = answering

    async def __call__(self, request: Request) -> Response:
        chat = await self._answering.prepared(request, prepare_chat)
        handles = self._answering.submit(request, [chat.job])
        reader = AnswersReader([AnswerReader(handle, chat.job.form) for handle in handles])
        writer = ChatWriter(chat, reader, self._answering.model)
        if chat.stream:
            response = event_response(ChoiceEvents(reader, writer), self._answering.options.keep_alive)
        else:
            response = Response(writer.answer(await whole_answers(reader)), content_type="application/json")
        response.headers["x-luce-seed"] = str(chat.job.submission.params.seed)
        return response
