"""The server that is asked: its address, and single exchanges with it over HTTP/1.1."""

from __future__ import annotations

import errno
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import attrs
import h11
import msgspec
import trio

from luce.errors import ConfigError, DeviceError, quoted, reason

__all__ = ["Target", "answer", "asking", "close", "connected", "exchange", "parse_target", "resolved"]

PIECE = 1 << 16
MOST_ANSWER = 1 << 26
"""Bytes of an answer that is read whole."""
SMALL_WINDOW = 4096
"""Receive buffer of a client that will stall, in bytes: the server is to notice it."""


@attrs.frozen
class Target:
    """Where a server is."""

    host: str
    port: int
    base: str
    """Path before ``/v1``, without a slash at its end."""
    tls: ssl.SSLContext | None = attrs.field(default=None, repr=False)
    key: str | None = attrs.field(default=None, repr=False)
    address: str | None = None
    """Of the host, once it is known; asked for at every connection otherwise."""
    seconds: float = 600.0
    """That :func:`resolved` and :func:`exchange` wait for it."""

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{'http' if self.tls is None else 'https'}://{self.authority}{self.base}"


def parse_target(url: str, key: str | None = None) -> Target:
    """A server by its address, with or without ``/v1`` at its end.

    Raises:
        ConfigError: it is none.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ConfigError(f"{quoted(url)}: {reason(error)}", flag="URL") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ConfigError(f"write it as http://HOST:PORT or https://HOST/v1, not {quoted(url)}", flag="URL")
    if not (parts.path.isascii() and parts.path.isprintable()) or " " in parts.path:
        raise ConfigError(f"the path of {quoted(url)} must be plain ASCII", flag="URL")
    secure = parts.scheme == "https"
    base = parts.path.rstrip("/").removesuffix("/v1")
    context = ssl.create_default_context() if secure else None
    return Target(parts.hostname, port or (443 if secure else 80), base, context, key)


async def resolved(target: Target) -> Target:
    """The same with an address at which somebody listens: names are looked up in threads, too slowly for a load.

    Raises:
        DeviceError: there is nobody, or nobody within the time.
    """
    try:
        with trio.fail_after(target.seconds):
            stream = await _opened(target)
    except trio.TooSlowError:
        raise DeviceError(f"{target}: no connection within {target.seconds:g} s (--timeout)") from None
    except ConnectionRefusedError as error:
        raise DeviceError(
            f"{target}: {reason(error)}; start the server, or give the address that it names"
        ) from None
    except OSError as error:
        raise DeviceError(f"{target}: {reason(error)}") from None
    address = str(stream.socket.getpeername()[0])
    await close(stream)
    return attrs.evolve(target, address=address)


async def _opened(target: Target) -> trio.SocketStream:
    """Raises OSError, which says why: trio's own only that all attempts failed."""
    try:
        return await trio.open_tcp_stream(target.address or target.host, target.port)
    except OSError as error:
        tries = error.__cause__.exceptions if isinstance(error.__cause__, BaseExceptionGroup) else ()
        if not tries:
            raise
        if all(isinstance(one, ConnectionRefusedError) for one in tries):
            raise ConnectionRefusedError(
                errno.ECONNREFUSED, "the connection was refused: nobody listens there"
            ) from None
        raise OSError(f"{reason(error)}: {reason(tries[-1])}") from None


@asynccontextmanager
async def connected(
    target: Target,
    *,
    small_window: bool = False,
    through: Callable[[trio.SocketStream], trio.abc.Stream] = lambda tcp: tcp,
) -> AsyncIterator[trio.abc.Stream]:
    """A connection. Leaving closes it at once, whatever is under way on it.

    Args:
        through: what lies between TCP and TLS, or above TCP.

    Raises:
        OSError: there is nobody, or it went wrong.
    """
    tcp = await _opened(target)
    if small_window:
        tcp.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_RCVBUF, SMALL_WINDOW)
    stream = through(tcp)
    if target.tls is not None:
        stream = trio.SSLStream(stream, target.tls, server_hostname=target.host, https_compatible=True)
    try:
        yield stream
    finally:
        await close(stream)


async def close(stream: trio.abc.Stream) -> None:
    await trio.aclose_forcefully(stream)


def asking(target: Target, method: str, path: str, body: bytes) -> tuple[h11.Connection, bytes]:
    """A request with a JSON body, or none: whose answer is expected, and the bytes to send."""
    wire = h11.Connection(h11.CLIENT)
    first = wire.send(_head(target, method, path, len(body))) or b""
    wire.send(h11.Data(data=body))  # of known length, it goes as it is
    wire.send(h11.EndOfMessage())
    return wire, first + body


def _head(target: Target, method: str, path: str, length: int) -> h11.Request:
    headers = [("host", target.authority), ("accept", "*/*"), ("connection", "close")]
    if method == "POST":
        headers += [("content-type", "application/json"), ("content-length", str(length))]
    if target.key is not None:
        headers.append(("authorization", f"Bearer {target.key}"))
    return h11.Request(method=method, target=target.base + path, headers=headers)


async def exchange(target: Target, method: str, path: str, body: Any = None) -> tuple[int, bytes]:
    """Status and content of one answer.

    Raises:
        DeviceError: the server cannot be reached, speaks no HTTP, or has not answered within the time.
    """
    data = b"" if body is None else msgspec.json.encode(body)
    try:
        with trio.fail_after(target.seconds):
            async with connected(target) as stream:
                wire, sent = asking(target, method, path, data)
                await stream.send_all(sent)
                return await _whole(stream, wire)
    except trio.TooSlowError:
        late = f"no whole answer within {target.seconds:g} s (--timeout)"
        raise DeviceError(f"{target}{path}: {late}") from None
    except (OSError, trio.BrokenResourceError, h11.RemoteProtocolError, ValueError) as error:
        cause = error.__cause__ if isinstance(error, trio.BrokenResourceError) and error.__cause__ else error
        raise DeviceError(f"{target}{path}: {reason(cause)}") from None


async def answer(
    stream: trio.abc.Stream, wire: h11.Connection
) -> AsyncGenerator[h11.Response | h11.Data, None]:
    """The head of an answer, then what is in it, as it comes.

    Raises:
        OSError, trio.BrokenResourceError: the connection breaks off.
        h11.RemoteProtocolError: it is no HTTP.
    """
    over = False
    while True:
        try:
            event = wire.next_event()
        except h11.RemoteProtocolError:
            if over:
                raise ConnectionError("closed before the answer was whole") from None
            raise
        if event is h11.NEED_DATA:
            data = bytes(await stream.receive_some(PIECE))
            over = not data
            wire.receive_data(data)
        elif isinstance(event, h11.Response | h11.Data):
            yield event
        elif isinstance(event, h11.EndOfMessage | h11.ConnectionClosed):
            return


async def _whole(stream: trio.abc.Stream, wire: h11.Connection) -> tuple[int, bytes]:
    status, content = 0, bytearray()
    async with aclosing(answer(stream, wire)) as events:
        async for event in events:
            if isinstance(event, h11.Response):
                status = event.status_code
                continue
            content += event.data
            if len(content) > MOST_ANSWER:
                raise ValueError(f"the answer has more than {MOST_ANSWER} bytes")
    return status, bytes(content)
