"""HTTP/1.0 and HTTP/1.1 on Hypercorn's reader and writer of it, which hands over what begins with HTTP/2.

Hypercorn also changes to HTTP/2 and WebSocket when a client offers to. This server does not: an offer to upgrade is
passed over, as HTTP allows, and the request answered as it stands. A client that knows that the server speaks HTTP/2
begins with it (`http2.py`).

Faults of the protocol are JSON errors here; Hypercorn's have no body. Refused are also three things that h11 takes: a
body with a length *and* chunks, or chunks in HTTP/1.0, of which two servers may disagree where they end (RFC 9112 §6);
and a head over the limit that arrived in one piece. A higher minor version is answered as 1.1, as RFC 9110 §2.5 has it.
"""

from __future__ import annotations

import re
from typing import Any

import h11
import trio
from hypercorn.events import Closed, RawData, Updated
from hypercorn.protocol.events import Body, EndBody, Request, Response
from hypercorn.protocol.h11 import STREAM_ID, H11Protocol
from hypercorn.protocol.http_stream import HTTPStream

from luce.errors import RequestError, reason
from luce.http.arrival import begin_at
from luce.http.refusals import MAX_HEAD_BYTES, check_head, origin_form, refusal, too_long

__all__ = ["Http1Protocol", "Http2Begins"]


_EMPTY_LINES = re.compile(rb"(?:\r?\n)+")
_FRAMED = frozenset({b"content-length", b"transfer-encoding"})


class Http2Begins(Exception):  # noqa: N818 - no error
    """The connection's first bytes are those of HTTP/2; holds all that have been read."""

    def __init__(self, data: bytes) -> None:
        self.data = data


class Http1Protocol(H11Protocol):
    """One connection's requests, one after the other."""

    _takes_chunks = _in_chunks = False
    refused = False
    """Nothing more is read: the last answer says why."""

    @property
    def unfinished_head(self) -> bool:
        """A request has begun to arrive and its head is not whole."""
        return self._awaits_head() and self.connection.trailing_data[0] not in (b"", b"\r")

    async def refuse(self, error: RequestError, path: str = "", method: bytes = b"") -> None:
        """Answer what is no request, or none that is taken, and read no more."""
        self.refused = True
        if self.connection.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            await self.send(Closed())  # an answer is on its way already
            return
        answer = refusal(error, path)
        headers = [*answer.headers, (b"connection", b"close"), *self.config.response_headers("h11")]
        await self._send_h11_event(h11.Response(status_code=answer.status, headers=headers))
        if method != b"HEAD":
            await self._send_h11_event(h11.Data(data=answer.body))
        await self._send_h11_event(h11.EndOfMessage())
        await self._close_stream()  # of which the body broke off

    async def stream_send(self, event: Any) -> None:
        """A piece of a body in chunks is framed here: h11 would look at it as at a message of its own."""
        if isinstance(event, Body) and self._in_chunks and event.data:
            data = bytes(event.data)
            await self.send(RawData(data=b"%x\r\n%b\r\n" % (len(data), data)))
            return
        if isinstance(event, Response):
            self._in_chunks = (
                self._takes_chunks
                and event.status_code >= 200
                and all(name.lower() not in _FRAMED for name, _ in event.headers)
            )
        await super().stream_send(event)

    async def part(self) -> None:
        """The server closes the connection: HTTP/1 has no word for that."""

    def _awaits_head(self) -> bool:
        return self.connection.their_state is h11.IDLE

    async def _handle_events(self) -> None:
        connection: Any = self.connection
        while not self.refused:
            if connection.they_are_waiting_for_100_continue:
                headers = self.config.response_headers("h11")
                await self._send_h11_event(h11.InformationalResponse(status_code=100, headers=headers))
            before = 0
            if self._awaits_head():
                connection = self._past_empty_lines()
                before = len(connection.trailing_data[0])
                if connection.trailing_data == (b"\r", False):
                    return  # the first half of one
            try:
                event = connection.next_event()
            except h11.RemoteProtocolError as error:
                await self.refuse(_as_request_error(error))
                return
            if isinstance(event, h11.Request):
                await self.send(Updated(idle=False))
                await self._begin(event, before - len(connection.trailing_data[0]))
            elif event is h11.PAUSED:
                await self.can_read.clear()
                await self.can_read.wait()
                begin_at(
                    self.connection_state, trio.current_time()
                )  # its predecessor's answer was waited for
            elif isinstance(event, h11.ConnectionClosed) or event is h11.NEED_DATA or self.stream is None:
                break
            elif isinstance(event, h11.Data):
                await self.stream.handle(Body(stream_id=STREAM_ID, data=bytes(event.data)))
            elif isinstance(event, h11.EndOfMessage):
                await self.stream.handle(EndBody(stream_id=STREAM_ID))

    def _past_empty_lines(self) -> Any:
        """Empty lines before a request are passed over (RFC 9112 §2.2): some clients end a body with one. h11 takes
        them for a request, and nothing out of what it has been given; before a head a fresh one knows as much."""
        data, closed = self.connection.trailing_data
        found = _EMPTY_LINES.match(data)
        if found is not None:
            self.connection = h11.Connection(
                h11.SERVER, max_incomplete_event_size=self.config.h11_max_incomplete_size
            )
            if found.end() < len(data):
                self.connection.receive_data(data[found.end() :])
            if closed:
                self.connection.receive_data(b"")
        return self.connection

    async def _begin(self, request: h11.Request, size: int) -> None:
        if (request.method, request.target, request.http_version) == (b"PRI", b"*", b"2.0"):
            if self.keep_alive_requests:
                await self.refuse(RequestError("HTTP/2 must begin with the connection", status=505))
                return
            raise Http2Begins(b"PRI * HTTP/2.0\r\n\r\n" + self.connection.trailing_data[0])
        target = origin_form(request.target)
        fault = _check_version(request) or check_head(target, len(request.headers), size)
        if fault is not None:
            await self.refuse(fault, target.partition(b"?")[0].decode("latin-1"), request.method)
            return
        self._takes_chunks, self._in_chunks = request.http_version != b"1.0", False
        self.stream = HTTPStream(
            self.app,
            self.config,
            self.context,
            self.task_group,
            self.ssl,
            self.client,
            self.server,
            self.stream_send,
            STREAM_ID,
        )
        await self.stream.handle(
            Request(
                stream_id=STREAM_ID,
                headers=list(request.headers),
                http_version=request.http_version.decode(),
                method=request.method.decode("ascii").upper(),
                raw_path=target,
                state=self.connection_state,
            )
        )
        self.keep_alive_requests += 1


def _check_version(request: h11.Request) -> RequestError | None:
    version = request.http_version
    if not version.startswith(b"1."):
        return RequestError("HTTP/1.0, HTTP/1.1 and HTTP/2 are served", status=505)
    names = {name for name, _ in request.headers}
    if b"transfer-encoding" not in names:
        return None
    if b"content-length" in names:
        return RequestError("a body has a Content-Length or Transfer-Encoding: chunked, not both")
    if version == b"1.0":
        return RequestError("HTTP/1.0 has no Transfer-Encoding; send a Content-Length")
    return None


def _as_request_error(error: h11.RemoteProtocolError) -> RequestError:
    if error.error_status_hint == 431:  # of a head that has no end yet
        return too_long(f"more than {MAX_HEAD_BYTES}")
    return RequestError(f"no valid HTTP request: {reason(error)}", status=error.error_status_hint)
