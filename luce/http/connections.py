"""Hypercorn's trio worker with connections that end: hang-ups are seen, stalls do not hold, faults stay inside.

Hypercorn's own ``serve`` is replaced, its connection class extended, for these reasons (tests: `tests/http/README.md`):

* When bytes follow a request (pipelining, or one stray line end), Hypercorn stops reading and never notices that the
  client has gone. Here every socket is watched for a hang-up, and then the whole connection is cancelled. A client
  that only shuts its sending side counts as gone too, as it does in Hypercorn.
* A write to a client that has stopped reading is shielded, so neither a deadline nor the server's end can stop it.
  Here the socket is shut when the server gives a connection up, and the kernel gives up a stalled client by itself
  (TCP_USER_TIMEOUT, set on the listening socket).
* An error inside one connection (trio's BusyResourceError, when a close meets a send) escapes from Hypercorn and takes
  all others down. Here it ends its own connection.
* After a request that is not HTTP the connection is closed, but Hypercorn's idle task lives on for the whole
  keep-alive time. Here it ends when there is nothing more to read.
* Connections are bounded, and the time that a handshake or a request's head may take.

What they speak is in `http1.py` and `http2.py`.
"""

from __future__ import annotations

import logging
import os
import socket
import ssl
from contextlib import suppress
from functools import partial
from typing import Any

import trio
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData
from hypercorn.trio.task_group import TaskGroup
from hypercorn.trio.tcp_server import MAX_RECV, TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState
from hypercorn.utils import parse_socket_addr, wrap_app
from quart import Quart

from luce.errors import CapacityError, RequestError
from luce.http.arrival import note_arrival
from luce.http.descriptors import room_for
from luce.http.hang_ups import HangUps
from luce.http.http1 import Http1Protocol, Http2Begins
from luce.http.http2 import Http2Protocol
from luce.http.options import HttpOptions
from luce.http.raw_answers import answer_and_close
from luce.http.refusals import MAX_HEAD_BYTES
from luce.stamped_stream import StampedStream

__all__ = ["serve_app"]

log = logging.getLogger("luce.http")

_CLOSING = (trio.BusyResourceError, trio.BrokenResourceError, trio.ClosedResourceError)
_GONE = (trio.ClosedResourceError, trio.BrokenResourceError)
WRITES_IN_A_ROW = 16
"""Of one connection before others get a turn, where every write is taken at once."""
LINGER_SECONDS = 1.0
"""That a client gets to read why nothing more of it is read: what it sends meanwhile would reset the connection."""


async def serve_app(
    app: Quart,
    listener: socket.socket,
    options: HttpOptions,
    stop: trio.Event,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Answer connections until ``stop`` is set; then idle ones close and busy ones get ``exit_grace`` seconds.

    Owns ``listener`` (bound, not yet listening) from the start.
    """
    config = Config()
    config.loglevel = "WARNING"
    config.errorlog = logging.getLogger("hypercorn.error")  # or it writes lines of its own to standard error
    config.include_server_header = False
    config.keep_alive_timeout = options.idle_timeout
    config.keep_alive_max_requests = 1_000_000
    config.h11_max_incomplete_size = MAX_HEAD_BYTES
    context, hang_ups = WorkerContext(None), HangUps()
    connection = partial(
        _Connection, wrap_app(app, config.wsgi_max_body_size, "asgi"), config, context, options, hang_ups
    )
    places = _Places(room_for(options.max_connections))

    async def serve(stream: trio.SocketStream) -> None:
        if places.taken >= places.most:
            await places.refuse(stream, secure=options.tls is not None)
            return
        places.taken += 1
        try:
            await connection(stream).run()
        finally:
            places.taken -= 1

    listener.setblocking(False)
    listener.listen(1024)
    accepting = trio.SocketListener(trio.socket.from_stdlib_socket(listener))
    async with trio.open_nursery() as watching:
        watching.start_soon(hang_ups.run)
        async with trio.open_nursery() as connections:
            async with trio.open_nursery() as acceptor:
                acceptor.start_soon(
                    partial(trio.serve_listeners, serve, [accepting], handler_nursery=connections)
                )
                task_status.started()
                await stop.wait()
                acceptor.cancel_scope.cancel()
            await context.terminated.set()
            connections.cancel_scope.deadline = trio.current_time() + options.exit_grace
        watching.cancel_scope.cancel()


class _Places:
    """How many connections there are, and what becomes of those for which there is no place.

    Args:
        most: connections at once.
    """

    MOST_REFUSALS = 64
    """That get an answer at once; more are only closed."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.taken = 0
        self._refusing = 0

    async def refuse(self, stream: trio.SocketStream, *, secure: bool) -> None:
        """503 and Retry-After; over TLS, where that would take a handshake, the connection is only closed."""
        if secure or self._refusing >= self.MOST_REFUSALS:
            await trio.aclose_forcefully(stream)
            return
        self._refusing += 1
        try:
            error = CapacityError(
                f"{self.taken} connections are open, and {self.most} at most (--max-connections); come again"
            )
            await answer_and_close(stream, error, LINGER_SECONDS)
        finally:
            self._refusing -= 1


class _Connection(TCPServer):
    """One client's connection."""

    protocol: Any
    stream: Any

    def __init__(
        self,
        app: Any,
        config: Config,
        context: WorkerContext,
        options: HttpOptions,
        hang_ups: HangUps,
        stream: trio.SocketStream,
    ) -> None:
        transport = StampedStream(stream)
        super().__init__(app, config, context, {}, transport)  # type: ignore[arg-type]
        self._options = options
        self._hang_ups = hang_ups
        self._transport = transport
        self._late: trio.Event | None = None
        """That a head came too late is being answered; set when that is sent."""
        self._state = ConnectionState({})
        self._head_is_timed = False
        self._plain = options.tls is None
        self._writes_in_a_row = 0
        if options.tls is not None:
            self.stream = trio.SSLStream(transport, options.tls, server_side=True, https_compatible=False)

    async def run(self) -> None:
        transport = self._transport
        try:
            with self._hang_ups.watching(transport.socket.fileno()) as gone:
                try:
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(self._watch, gone, nursery.cancel_scope)
                        await self._serve(nursery)
                        nursery.cancel_scope.cancel()
                except* _CLOSING:
                    log.debug("a connection was closed while it was written to")
                except* Exception:
                    log.exception("a connection failed")
        finally:
            await trio.aclose_forcefully(transport)

    async def protocol_send(self, event: Event) -> None:
        """Write at once what the socket takes at once, as it does for nearly every token: Hypercorn's way through a
        lock, a shield and trio's sending costs more than the write."""
        if isinstance(event, RawData) and self._plain and not self.send_lock.locked():
            try:
                sent = os.write(self._transport.socket.fileno(), event.data)
            except BlockingIOError:
                sent = 0
            except OSError:
                await self.protocol.handle(Closed())
                return
            if sent == len(event.data):
                self._writes_in_a_row += 1
                if self._writes_in_a_row >= WRITES_IN_A_ROW:  # others' turn
                    self._writes_in_a_row = 0
                    await trio.lowlevel.cancel_shielded_checkpoint()
                return
            event = RawData(event.data[sent:])
        await super().protocol_send(event)

    async def _watch(self, gone: trio.Event, connection: trio.CancelScope) -> None:
        """Cancel the connection when the client hangs up; shut its socket when the server gives it up."""
        try:
            await gone.wait()
        except trio.Cancelled:
            if not connection.cancel_called:
                with suppress(OSError):
                    self._transport.socket.shutdown(socket.SHUT_RDWR)  # a shielded send fails now
            raise
        connection.cancel()

    async def _serve(self, nursery: trio.Nursery) -> None:
        """As Hypercorn's ``run``."""
        try:
            protocol: Any = Http1Protocol
            if isinstance(self.stream, trio.SSLStream):
                if not await self._shake_hands(self.stream):
                    return
                if self.stream.selected_alpn_protocol() == "h2":
                    protocol = partial(Http2Protocol, options=self._options)
            async with TaskGroup() as tasks:
                self._task_group = tasks
                self.protocol = protocol(*self._about())
                await self.protocol.initiate()
                nursery.start_soon(self._part)
                await self.idle_task.restart(tasks, self._idle_timeout)
                await self._read_data()
        except OSError:
            log.debug("a connection was gone before it was served")
        finally:
            await self._close()

    def _about(self) -> tuple[Any, ...]:
        peer = self._transport.socket
        return (
            self.app,
            self.config,
            self.context,
            self._task_group,
            self._state,
            self._options.tls is not None,
            parse_socket_addr(peer.family, peer.getpeername()),
            parse_socket_addr(peer.family, peer.getsockname()),
            self.protocol_send,
        )

    async def _shake_hands(self, stream: trio.SSLStream[StampedStream]) -> bool:
        """False when the client does not speak TLS, or not in time; plain HTTP is told so."""
        try:
            with trio.fail_after(self._options.head_timeout):
                await stream.do_handshake()
        except trio.TooSlowError:
            log.debug("a TLS handshake took too long")
        except trio.BrokenResourceError as error:
            cause = error.__cause__
            log.debug("a TLS handshake failed: %s", cause)
            if isinstance(cause, ssl.SSLError) and cause.reason == "HTTP_REQUEST":
                fault = RequestError("this port speaks TLS; ask with https://")
                await answer_and_close(self._transport, fault, LINGER_SECONDS)
        else:
            return True
        await trio.aclose_forcefully(self._transport)
        return False

    async def _part(self) -> None:
        """When the server ends, clients are told not to begin anything, as far as the protocol has a word for it."""
        await self.context.terminated.wait()
        await self.protocol.part()

    async def _read_data(self) -> None:
        while not self.protocol.refused:
            data = None
            with trio.CancelScope() as self._reading, suppress(*_GONE):
                data = await self.stream.receive_some(MAX_RECV)
            if data is None:
                break
            note_arrival(self._state, self._transport.received)
            try:
                await self.protocol.handle(RawData(bytes(data)))
            except Http2Begins as begins:
                await self._change(begins.data)
            if not data:
                break
            await self._time_head()
        if self.protocol.refused:
            await self._linger()
        await self.protocol.handle(Closed())
        await self.idle_task.stop()

    async def _change(self, data: bytes) -> None:
        """The client has begun with HTTP/2, by prior knowledge."""
        self.protocol = Http2Protocol(*self._about(), options=self._options)
        await self.protocol.initiate()
        await self.idle_task.restart(self._task_group, self._idle_timeout)
        await self.protocol.handle(RawData(data))

    async def _time_head(self) -> None:
        """From the first byte of a request's head to its last one there is less time than between requests."""
        timed, self._head_is_timed = self._head_is_timed, self.protocol.unfinished_head
        if self._head_is_timed and not timed:
            await self.idle_task.restart(self._task_group, self._head_timeout)

    async def _head_timeout(self) -> None:
        with trio.move_on_after(self._options.head_timeout) as patience:
            await self.context.terminated.wait()
        with trio.CancelScope(shield=True):
            if patience.cancelled_caught:
                late = RequestError("the request's line and headers did not arrive in time", status=408)
                self._late = trio.Event()
                await self.protocol.refuse(late)
                self._late.set()
                self._reading.cancel()  # the task that reads lingers and closes
            else:
                await self._initiate_server_close()

    async def _initiate_server_close(self) -> None:
        await self.protocol.part()
        await super()._initiate_server_close()

    async def _linger(self) -> None:
        with suppress(*_CLOSING), trio.move_on_after(LINGER_SECONDS):
            if self._late is not None:
                await (
                    self._late.wait()
                )  # what came meanwhile has ended the reading before the answer was sent
            await self._transport.send_eof()
            while await self._transport.receive_some(MAX_RECV):
                pass
