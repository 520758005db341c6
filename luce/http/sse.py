"""Server-sent events: framing, and a response body that owns what it streams."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Protocol

import msgspec
import trio
from quart import Response
from quart.wrappers.response import ResponseBody

from luce.http.errors import error_body

__all__ = ["DONE", "KEEP_ALIVE", "EventBody", "EventSource", "data", "event", "event_response"]

KEEP_ALIVE = b": keep-alive\n\n"
DONE = b"data: [DONE]\n\n"


def data(payload: bytes) -> bytes:
    """One event. ``payload`` is JSON, so it holds no line end."""
    return b"data: " + payload + b"\n\n"


def event(name: str, payload: bytes) -> bytes:
    """One event that has a name, for the APIs that give theirs one."""
    return b"event: " + name.encode() + b"\ndata: " + payload + b"\n\n"


def openai_error(error: Exception) -> bytes:
    """What a stream of OpenAI's API ends with when it breaks."""
    return data(msgspec.json.encode(error_body(error)))


class EventSource(Protocol):
    """What a stream is read from."""

    def first(self) -> bytes:
        """Sent with the headers, before there is anything to say."""

    async def next(self) -> bytes:
        """The next events; b"" after the last. Cancelling this wait must lose nothing."""


class EventBody(ResponseBody):
    """The source's events, comments while it is silent, and an error event if it breaks.

    A stream that breaks ends without ``[DONE]``: clients take an error event, or a missing end, for what it is.

    Args:
        keep_alive: seconds of silence after which ``silence`` is sent.
        broken: the last events of a stream that cannot be finished.
        close: called when nobody reads any more, however it came to that.
    """

    def __init__(
        self,
        source: EventSource,
        keep_alive: float,
        *,
        silence: bytes = KEEP_ALIVE,
        broken: Callable[[Exception], bytes] = openai_error,
        close: Callable[[], None] | None = None,
    ) -> None:
        self._source = source
        self._keep_alive = keep_alive
        self._silence = silence
        self._broken = broken
        self._close = close
        self._started = False
        self._ended = False

    async def __aenter__(self) -> EventBody:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._close is not None:
            self._close()

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
            return self._broken(error)
        if silence.cancelled_caught:
            return self._silence
        if not events:
            self._ended = True
            raise StopAsyncIteration
        return events


def event_response(
    source: EventSource,
    keep_alive: float,
    *,
    silence: bytes = KEEP_ALIVE,
    broken: Callable[[Exception], bytes] = openai_error,
    close: Callable[[], None] | None = None,
) -> Response:
    """The events of a source as an answer; the arguments are :class:`EventBody`'s."""
    body = EventBody(source, keep_alive, silence=silence, broken=broken, close=close)
    response = Response(body, content_type="text/event-stream; charset=utf-8")
    response.headers["Cache-Control"] = "no-cache"
    response.headers["X-Accel-Buffering"] = "no"
    return response
