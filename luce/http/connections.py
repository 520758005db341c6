"""Hypercorn's trio worker with connections that end: hang-ups are seen, stalls do not hold, faults stay inside.

Hypercorn's own ``serve`` is replaced, its connection class extended, for these reasons (each has a test in
`tests/http/test_connections.py`):

* When bytes follow a request (pipelining, or one stray line end), Hypercorn stops reading and never notices that the
  client has gone. Here every socket is watched for a hang-up, and then the whole connection is cancelled. A client
  that only shuts its sending side counts as gone too, as it does in Hypercorn.
* A write to a client that has stopped reading is shielded, so neither a deadline nor the server's end can stop it.
  Here the socket is shut when the server gives a connection up, and the kernel gives up a stalled client by itself
  (TCP_USER_TIMEOUT, set on the listening socket).
* Every connection speaks HTTP/1 and stays with it (`http1.py`).
* An error inside one connection (trio's BusyResourceError, when a close meets a send) escapes from Hypercorn and takes
  all others down. Here it ends its own connection.
* After a request that is not HTTP the connection is closed, but Hypercorn's idle task lives on for the whole
  keep-alive time. Here it ends when there is nothing more to read.
"""

from __future__ import annotations

import logging
import select
import socket
from contextlib import suppress
from functools import partial
from typing import Any, cast

import trio
from hypercorn.config import Config
from hypercorn.trio.task_group import TaskGroup
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState
from hypercorn.utils import parse_socket_addr, wrap_app
from quart import Quart

from luce.http.http1 import Http1Protocol
from luce.http.options import HttpOptions

__all__ = ["serve_app"]

log = logging.getLogger("luce.http")

_CLOSING = (trio.BusyResourceError, trio.BrokenResourceError, trio.ClosedResourceError)


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
    context = WorkerContext(None)
    connection = partial(_Connection, wrap_app(app, config.wsgi_max_body_size, "asgi"), config, context, {})
    listener.setblocking(False)
    listener.listen(1024)
    accepting = trio.SocketListener(trio.socket.from_stdlib_socket(listener))
    async with trio.open_nursery() as connections:
        async with trio.open_nursery() as acceptor:
            acceptor.start_soon(
                partial(trio.serve_listeners, connection, [accepting], handler_nursery=connections)
            )
            task_status.started()
            await stop.wait()
            acceptor.cancel_scope.cancel()
        await context.terminated.set()
        connections.cancel_scope.deadline = trio.current_time() + options.exit_grace


class _Connection(TCPServer):
    """One client's connection."""

    async def run(self) -> None:
        stream = cast(trio.SocketStream, self.stream)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_watch, stream, nursery.cancel_scope)
                await self._serve(stream)
                nursery.cancel_scope.cancel()
        except* _CLOSING:
            log.debug("a connection was closed while it was written to")
        except* Exception:
            log.exception("a connection failed")
        finally:
            await trio.aclose_forcefully(stream)

    async def _serve(self, stream: trio.SocketStream) -> None:
        """As Hypercorn's ``run`` for a socket without TLS, with HTTP/1 alone."""
        family = stream.socket.family
        try:
            client, server = stream.socket.getpeername(), stream.socket.getsockname()
            async with TaskGroup() as tasks:
                self._task_group = tasks
                self.protocol = Http1Protocol(  # type: ignore[assignment]
                    self.app,
                    self.config,
                    self.context,
                    tasks,
                    ConnectionState(self.state),
                    False,
                    parse_socket_addr(family, client),
                    parse_socket_addr(family, server),
                    self.protocol_send,
                )
                await self.idle_task.restart(tasks, self._idle_timeout)
                await self._read_data()
        except OSError:
            log.debug("a connection was gone before it was served")
        finally:
            await self._close()

    async def _read_data(self) -> None:
        await super()._read_data()
        await self.idle_task.stop()


async def _watch(stream: trio.SocketStream, connection: trio.CancelScope) -> None:
    """Cancel the connection when the client hangs up; shut its socket when the server gives it up."""
    try:
        await _hang_up(stream.socket.fileno())
    except trio.Cancelled:
        if not connection.cancel_called:
            with suppress(OSError):
                stream.socket.shutdown(socket.SHUT_RDWR)  # a shielded send fails now
        raise
    connection.cancel()


async def _hang_up(fd: int) -> None:
    """Return when the other side has closed. Where the system cannot tell, never: reading and writing still do."""
    epoll: Any = getattr(select, "epoll", None)
    if epoll is None or fd < 0:
        await trio.sleep_forever()
    with epoll(1) as watch:
        watch.register(fd, select.EPOLLRDHUP)
        await trio.lowlevel.wait_readable(watch.fileno())
