"""The server process: a listening socket, Hypercorn in front of the service, and an orderly end."""

from __future__ import annotations

import errno
import logging
import math
import signal
import socket
import threading
from collections.abc import Callable

import trio

from luce.actors.options import ServiceOptions
from luce.actors.service import Service
from luce.engines.loaded import LoadedModel
from luce.errors import ConfigError
from luce.http.app import create_app
from luce.http.asgi import App
from luce.http.connections import serve_app
from luce.http.options import HttpOptions
from luce.stamped_stream import ask_for_stamps
from luce.trace.recorder import Recorder

__all__ = ["listen", "run_server"]

CUT_AFTER = 0.5
"""Seconds behind ``abort_grace`` that the tasks get to end in order."""

log = logging.getLogger("luce.http")


def listen(options: HttpOptions) -> socket.socket:
    """A bound socket, before any weight is loaded, so that a taken port is known at once.

    A client that stops reading blocks its connection's task in a write that nothing can cancel; the kernel ends it
    after ``stalled_timeout`` (TCP_USER_TIMEOUT, which accepted sockets inherit).

    Raises:
        ConfigError: names ``--host`` when the address is unknown or not this machine's, ``--port`` when the port is
            taken or not allowed.
    """
    try:
        found = socket.getaddrinfo(
            options.host or None, options.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except socket.gaierror as error:
        raise ConfigError(f"{options.host!r}: {error.strerror}", flag="--host") from None
    family, kind, protocol, _, address = found[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            milliseconds = math.ceil(options.stalled_timeout * 1000)
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
        ask_for_stamps(listener)
        listener.bind(address)
    except OSError as error:
        listener.close()
        flag = "--port" if error.errno in (errno.EADDRINUSE, errno.EACCES, errno.EPERM) else "--host"
        said = f"cannot listen on {options.host}:{options.port}: {error.strerror}"
        if error.errno == errno.EADDRINUSE:
            said += "; take another port, or 0 for a free one"
        raise ConfigError(said, flag=flag) from None
    return listener


async def run_server(
    model: LoadedModel,
    service_options: ServiceOptions,
    http_options: HttpOptions,
    listener: socket.socket,
    announce: Callable[[tuple[str, int]], None],
    cut: Callable[[], None] | None = None,
    observe: Callable[[Service, App], None] | None = None,
    recorder: Recorder | None = None,
) -> bool:
    """Serve until a signal. The first one lets running answers finish, the second one ends them, a third one cuts.

    While it drains the server still answers: new work gets 503 with Retry-After, /ready says so, and only when the
    last answer has ended (or ``drain_timeout`` has passed) do the connections close. After the second signal clients
    get an error event, and ``abort_grace`` seconds later whatever is left is cut; ``cut`` then ends what no task can
    leave, a step or a picture that is being computed.

    Args:
        announce: called once when requests are taken, with the address.
        cut: ends the process. Called from any thread when the server has not ended soon after ``abort_grace``, and from
            the handler of a third signal; without it the server waits for what is being computed.
        observe: called once before requests are taken, with what may be listened to.
        recorder: records all of it.

    Returns:
        True when everything that was begun has ended by itself or by the drain limit, False after a second signal.

    Raises:
        Exception: what a bug in the service raised, after its clients have got an error.
    """
    service = Service(model, service_options, recorder=recorder)
    address = listener.getsockname()[:2]
    failures: list[Exception] = []
    stop = trio.Event()
    hurried = trio.Event()
    async with trio.open_nursery() as nursery:
        await nursery.start(
            _obey_signals, service, nursery.cancel_scope, hurried, http_options.abort_grace, cut
        )
        await nursery.start(_run_service, service, failures)
        async with trio.open_nursery() as front:
            app = create_app(service, model, http_options)
            if observe is not None:
                observe(service, app)
            await front.start(serve_app, app, listener, http_options, stop)
            announce(address)
            await service.stopped()
            stop.set()
        nursery.cancel_scope.cancel()
    if failures:
        raise failures[0]
    return not hurried.is_set()


async def _run_service(
    service: Service, failures: list[Exception], task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """A failure must not take the connections down before they have told their clients."""
    started = False

    class Status:
        def started(self, value: None = None) -> None:
            nonlocal started
            started = True
            task_status.started()

    try:
        await service.run(task_status=Status())
    except Exception as error:
        if not started:
            raise
        log.exception("the service failed")
        failures.append(error)


async def _obey_signals(
    service: Service,
    everything: trio.CancelScope,
    hurried: trio.Event,
    grace: float,
    cut: Callable[[], None] | None,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        task_status.started()
        received = signal.Signals(await anext(signals))
        limit = service.options.drain_timeout
        log.warning("%s: finishing what runs, for up to %g s; a second signal ends it", received.name, limit)
        service.drain()
        received = signal.Signals(await anext(signals))
        log.warning("%s: ending what runs within %g s; a third signal cuts it", received.name, grace)
        hurried.set()
        everything.deadline = trio.current_time() + grace
        service.drain()
        if cut is not None:
            _cut_later(cut, grace)
        await anext(signals)
        everything.cancel()


def _cut_later(cut: Callable[[], None], grace: float) -> None:
    """Nothing that a thread computes can hold up the end: by then trio's own thread may be waiting for one."""
    last = threading.Timer(grace + CUT_AFTER, cut)
    last.daemon = True
    last.start()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: cut())
