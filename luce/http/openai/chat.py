"""POST /v1/chat/completions: submit, then write the answer as it comes or once it is whole."""

from __future__ import annotations

from quart import Request, Response

from luce.engines.seam import SampledToken
from luce.http.answering.reader import AnswerReader, Finish
from luce.http.answering.several import AnswersReader
from luce.http.answering.start import Answering
from luce.http.openai.chat_response import ChatWriter
from luce.http.openai.prepare import prepare_chat
from luce.http.sse import DONE, data, event_response
from luce.text.answer_parts import Part

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
            response = event_response(ChatEvents(reader, writer), self._answering.options.keep_alive)
        else:
            response = Response(await _whole(reader, writer), content_type="application/json")
        response.headers["x-luce-seed"] = str(chat.job.submission.params.seed)
        return response


class ChatEvents:
    """The chunks of one streamed answer."""

    def __init__(self, reader: AnswersReader, writer: ChatWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._ended = False

    def first(self) -> bytes:
        return b"".join(map(data, self._writer.first_chunks()))

    async def next(self) -> bytes:
        while not self._ended:
            found = await self._reader.next()
            if found is None:
                self._ended = True
                usage = self._writer.usage_chunk()
                return (data(usage) if usage is not None else b"") + DONE
            index, item = found
            if isinstance(item, Finish):
                return data(self._writer.finish_chunk(index, item))
            chunks = self._writer.delta_chunks(index, item)
            if chunks:
                return b"".join(map(data, chunks))
        return b""


async def _whole(reader: AnswersReader, writer: ChatWriter) -> bytes:
    parts: list[list[Part]] = [[] for _ in reader.readers]
    tokens: list[list[SampledToken]] = [[] for _ in reader.readers]
    ends: dict[int, Finish] = {}
    while (found := await reader.next()) is not None:
        index, item = found
        if isinstance(item, Finish):
            ends[index] = item
        else:
            parts[index] += item.parts
            tokens[index] += item.tokens
    return writer.answer(
        [writer.choice(index, parts[index], tokens[index], ends[index]) for index in range(len(parts))]
    )
