"""HTTP/1.0 and HTTP/1.1, and nothing else, on Hypercorn's reader and writer of it.

Hypercorn also speaks HTTP/2 without TLS (by prior knowledge and by upgrade) and WebSocket. This server does not:
over HTTP/2 a client that grants no window leaves its answer waiting where no timeout of ours or of the kernel sees
it, and nothing here is served over WebSocket. An offer to upgrade is passed over, as HTTP allows, and the request
answered as it stands; a connection that begins with HTTP/2 gets 505.
"""

from __future__ import annotations

import h11
from hypercorn.events import Closed, Event
from hypercorn.protocol.events import Request
from hypercorn.protocol.h11 import STREAM_ID, H11Protocol
from hypercorn.protocol.http_stream import HTTPStream

__all__ = ["Http1Protocol"]


class Http1Protocol(H11Protocol):
    """One connection's requests, one after the other."""

    async def handle(self, event: Event) -> None:
        try:
            await super().handle(event)
        except (
            h11.RemoteProtocolError
        ) as error:  # of _check_protocol; h11's own are answered where they come up
            await self._send_error_response(error.error_status_hint)
            await self.send(Closed())

    async def _check_protocol(self, event: h11.Request) -> None:
        if not event.http_version.startswith(b"1."):
            raise h11.RemoteProtocolError("only HTTP/1.0 and HTTP/1.1 are served", error_status_hint=505)

    async def _create_stream(self, request: h11.Request) -> None:
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
                raw_path=request.target,
                state=self.connection_state,
            )
        )
        self.keep_alive_requests += 1
        await self.context.mark_request()
