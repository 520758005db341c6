"""One HTTP request between Hypercorn and Quart: what a request holds is released on every way out.

quart-trio's connection class is replaced for these reasons, each with a test in `tests/http`:

* Hypercorn reports a disconnect from inside the last send of every response; quart-trio takes that as the client's
  going and cancels the very task that is finishing the send, so the connection is neither recycled nor closed. The
  last send is shielded here.
* A response that is sent while a large body still arrives is lost in the reset that follows. The body is read to its
  end first, within bounds.
* A body is held in memory within a bound over all requests, and let go however the request ends (`held_bodies.py`).
* A handler may own things (a running answer) that must be released even when it is cancelled between two awaits of
  the framework: :func:`owned` is closed when the request ends, whatever happened.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, cast

import trio
from quart.utils import encode_headers
from quart.wrappers import Request, Response
from quart_trio import QuartTrio
from quart_trio.asgi import TrioASGIHTTPConnection
from structlog.contextvars import bound_contextvars

from luce.http.held_bodies import BodyBudget, HeldBody
from luce.http.http_tallies import HttpTallies
from luce.http.request_log import RequestRecord

if TYPE_CHECKING:
    from hypercorn.typing import ASGIReceiveCallable, ASGISendCallable
    from quart.typing import ResponseTypes

__all__ = ["App", "Connection", "held_body", "owned"]

_OWNED = "luce.owned"
LINGER_SECONDS = 5.0


def owned(request: Request) -> ExitStack:
    """What the request holds; closed when it ends, however it ends."""
    return cast(ExitStack, cast(dict[str, Any], request.scope)[_OWNED])


def held_body(request: Request) -> HeldBody:
    """The request's body, to be taken whole and released."""
    return cast(HeldBody, request.body)


class Connection(TrioASGIHTTPConnection):
    """Quart's view of one HTTP request. Quart makes one for each."""

    app: App

    async def __call__(self, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        self._received = trio.Event()
        request = self._create_request_from_scope(send)
        body = HeldBody(self.app.bodies, request.content_length, self.app.config["MAX_CONTENT_LENGTH"])
        request.body = body
        self._record = record = RequestRecord.begin(request)
        self.app.records.add(record)
        with bound_contextvars(request_id=record.id), ExitStack() as stack:
            stack.callback(self._over, request)
            stack.callback(record.write, request)  # after all that follows is released
            stack.callback(body.drop_rest)
            cast(dict[str, Any], self.scope)[_OWNED] = stack
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.handle_messages, nursery, request, receive)
                nursery.start_soon(self.handle_request, nursery, request, send)

    def _over(self, request: Request) -> None:
        self.app.records.discard(self._record)
        self.app.tallies.count(request, self._record, trio.current_time())

    async def handle_messages(  # type: ignore[override]
        self, nursery: trio.Nursery, request: Request, receive: ASGIReceiveCallable
    ) -> None:
        """Take in the body, then wait for the client to go."""
        while True:
            message = await receive()
            if message["type"] == "http.request":
                request.body.append(message.get("body", b""))
                if not message.get("more_body", False):
                    request.body.set_complete()
                    self._received.set()
            elif message["type"] == "http.disconnect":
                nursery.cancel_scope.cancel()
                return

    async def handle_request(  # type: ignore[override]
        self, nursery: trio.Nursery, request: Request, send: ASGISendCallable
    ) -> None:
        response = await self.app.handle_request(request)
        held_body(request).drop_rest()
        if response.status_code >= 400 and response.status_code != 408:
            with trio.move_on_after(LINGER_SECONDS):
                await self._received.wait()
        await self._send_response(send, response)
        nursery.cancel_scope.cancel()

    async def _send_response(self, send: ASGISendCallable, response: ResponseTypes) -> None:
        headers = encode_headers(response.headers)
        start: Any = {"type": "http.response.start", "status": response.status_code, "headers": headers}
        if isinstance(response, Response):
            async with response.response as body:
                await send(start)
                self._record.status = response.status_code
                async for data in body:
                    await send(_piece(data, more=True))
        else:
            await send(start)
            self._record.status = response.status_code
            for data in response.response:
                await send(_piece(data, more=True))
        with trio.CancelScope(shield=True):
            await send(_piece(b"", more=False))
        self._record.complete = True


class App(QuartTrio):
    """Args:
    bodies: what all requests together may hold of their bodies.
    """

    asgi_http_class = Connection

    def __init__(self, bodies: BodyBudget) -> None:
        super().__init__("luce", static_folder=None)
        self.bodies = bodies
        self.records: set[RequestRecord] = set()
        """Of the requests that there are now."""
        self.tallies = HttpTallies()
        """Of those that are over."""


def _piece(data: bytes | str, *, more: bool) -> Any:
    body = data.encode() if isinstance(data, str) else data
    return {"type": "http.response.body", "body": body, "more_body": more}
