"""Server-sent events: framing, and a response body that owns what it streams."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import TracebackType
from typing import Protocol

import msgspec
import trio
from quart import Response
from quart.wrappers.response import ResponseBody

from luce.http.errors import error_body

__all__ = ["DONE", "EventBody", "EventSource", "data", "event_response"]

KEEP_ALIVE = b": keep-alive\n\n"
DONE = b"data: [DONE]\n\n"


def data(payload: bytes) -> bytes:
    """One event. ``payload`` is JSON, so it holds no line end."""
    return b"data: " + payload + b"\n\n"


class EventSource(Protocol):
    """What a stream is read from."""

    def first(self) -> bytes:
        """Sent with the headers, before there is anything to say."""

    async def next(self) -> bytes:
        """The next events; b"" after the last. Cancelling this wait must lose nothing."""


class EventBody(ResponseBody):
    """The source's events, comments while it is silent, and an error event if it breaks.

    A stream that breaks ends without ``[DONE]``: clients take an error event, or a missing end, for what it is.
    """

    def __init__(self, source: EventSource, keep_alive: float) -> None:
        self._source = source
        self._keep_alive = keep_alive
        self._started = False
        self._ended = False

    async def __aenter__(self) -> EventBody:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        if not self._started:
            self._started = True
            return self._source.first()
        if self._ended:
            raise StopAsyncIteration
        try:
            with trio.move_on_after(self._keep_alive) as silence:
                events = await self._source.next()
        except Exception as error:
            self._ended = True
            return data(msgspec.json.encode(error_body(error)))
        if silence.cancelled_caught:
            return KEEP_ALIVE
        if not events:
            self._ended = True
            raise StopAsyncIteration
        return events


def event_response(source: EventSource, keep_alive: float) -> Response:
    response = Response(EventBody(source, keep_alive), content_type="text/event-stream; charset=utf-8")
    response.headers["Cache-Control"] = "no-cache"
    response.headers["X-Accel-Buffering"] = "no"
    return response
