"""POST /v1/chat/completions: submit, then write the answer as it comes or once it is whole."""

from __future__ import annotations

import trio
from quart import Request, Response

from luce.actors.service import Service
from luce.actors.submission import Handle
from luce.actors.token_buffer import End
from luce.engines.loaded import LoadedModel
from luce.engines.seam import SampledToken
from luce.errors import CapacityError, LuceError, RequestError
from luce.http.asgi import held_body, owned
from luce.http.body import read_json_body
from luce.http.openai.chat_response import ChatWriter
from luce.http.openai.prepare import prepare_chat
from luce.http.options import HttpOptions
from luce.http.request_log import record_of
from luce.http.sse import DONE, data, event_response
from luce.text.answer_parts import Part

__all__ = ["Chat"]


class Chat:
    """The endpoint. One for the server; nothing of a request is kept here."""

    def __init__(self, service: Service, model: LoadedModel, options: HttpOptions) -> None:
        self._service = service
        self._model = model
        self._options = options
        self._workers = trio.CapacityLimiter(options.preparing)

    async def __call__(self, request: Request) -> Response:
        body = await read_json_body(request, self._options.body_timeout)
        if not self._service.ready:
            raise CapacityError(f"the server is {self._service.state}", retry_after=5)
        job = await trio.to_thread.run_sync(
            prepare_chat, body, self._model, self._options, limiter=self._workers
        )
        held_body(request).release()
        record = record_of(request)
        handle = self._service.submit(job.submission, record.started)
        owned(request).callback(handle.cancel)
        record.handle = handle
        writer = ChatWriter(job, handle, self._model)
        if job.stream:
            response = event_response(ChatEvents(handle, writer), self._options.keep_alive)
        else:
            response = Response(await _whole(handle, writer), content_type="application/json")
        response.headers["x-luce-seed"] = str(job.submission.params.seed)
        return response


class ChatEvents:
    """The chunks of one streamed answer."""

    def __init__(self, handle: Handle, writer: ChatWriter) -> None:
        self._handle = handle
        self._writer = writer
        self._ended = False

    def first(self) -> bytes:
        return data(self._writer.first_chunk())

    async def next(self) -> bytes:
        while not self._ended:
            item = await self._handle.next()
            if isinstance(item, End):
                chunks = self._writer.delta_chunks(self._writer.rest(item.reason))
                if chunks:
                    return _events(chunks)  # before what may be an error; the end comes again
                self._ended = True
                return self._end(_reason(item))
            chunks = self._writer.delta_chunks(self._writer.take(item.text, item.tokens), item.tokens)
            if self._writer.complete:
                self._ended = True
                return _events(chunks) + self._end("stop")
            if chunks:
                return _events(chunks)
        return b""

    def _end(self, reason: str) -> bytes:
        usage = self._writer.usage_chunk()
        return data(self._writer.finish_chunk(reason)) + (data(usage) if usage is not None else b"") + DONE


def _events(chunks: list[bytes]) -> bytes:
    return b"".join(map(data, chunks))


async def _whole(handle: Handle, writer: ChatWriter) -> bytes:
    parts: list[Part] = []
    tokens: list[SampledToken] = []
    while not writer.complete:
        item = await handle.next()
        if isinstance(item, End):
            parts += writer.rest(item.reason)
            return writer.answer(parts, tokens, _reason(item))
        parts += writer.take(item.text, item.tokens)
        tokens += item.tokens
    return writer.answer(parts, tokens, "stop")


def _reason(end: End) -> str:
    """The finish reason of a whole answer; raises what ended one that is not."""
    if end.reason in ("stop", "length"):
        return end.reason
    raise end.error or _unexplained(end)


def _unexplained(end: End) -> LuceError:
    if end.reason == "cancelled":
        # Clients ask again by themselves after 409, 429 and 5xx, and that is not what whoever cancelled it wants.
        return RequestError("the answer was cancelled", status=499, code="cancelled")
    return LuceError("the answer failed")
