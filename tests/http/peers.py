"""Clients by hand, one for each protocol, that do what libraries would not: stall, break off, send what is wrong."""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable
from typing import Any

import h2.config
import h2.connection
import h2.events
import h2.settings
import trio
import trustme

from luce.http.tls import ALPN
from tests.http.conftest import Server

HI = [{"role": "user", "content": "Hi"}]
PATH = "/v1/chat/completions"

AUTHORITY = trustme.CA()
CERTIFICATE = AUTHORITY.issue_cert("127.0.0.1", "localhost")


def server_side() -> ssl.SSLContext:
    """As `luce.http.tls` makes it, from certificates in memory."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols(ALPN)
    CERTIFICATE.configure_cert(context)
    return context


def client_side(*protocols: str) -> ssl.SSLContext:
    context = ssl.create_default_context()
    AUTHORITY.configure_trust(context)
    if protocols:
        context.set_alpn_protocols(protocols)
    return context


class Peer:
    """What the clients have in common. ``data`` is what came of bodies so far."""

    def __init__(self, stream: trio.abc.Stream, socket: trio.socket.SocketType) -> None:
        self.stream = stream
        self.socket = socket
        self.data = b""
        self.status = 0
        self.headers: dict[str, str] = {}
        self.over = False
        """The answer is whole, reset, or its connection closed."""

    async def ask(self, body: Any, path: str = PATH, headers: dict[str, str] | None = None) -> None:
        data = json.dumps(body).encode()
        await self.begin("POST", path, {"content-length": str(len(data)), **(headers or {})})
        await self.send_body(data, last=True)

    async def begin(self, method: str, path: str, headers: dict[str, str], last: bool = False) -> None:
        raise NotImplementedError

    async def send_body(self, data: bytes, *, last: bool) -> None:
        raise NotImplementedError

    async def receive(self) -> None:
        """Take in what comes next."""
        raise NotImplementedError

    async def read_until(self, mark: bytes, seconds: float = 20) -> bytes:
        with trio.fail_after(seconds):
            while mark not in self.data:
                assert not self.over, f"it ended before {mark!r}: {self.status} {self.data!r}"
                await self.receive()
        return self.data

    async def read_to_end(self, seconds: float = 20) -> bytes:
        with trio.fail_after(seconds):
            while not self.over:
                await self.receive()
        return self.data

    async def leave(self) -> None:
        await trio.aclose_forcefully(self.stream)


class Peer1(Peer):
    raw = b""

    async def begin(self, method: str, path: str, headers: dict[str, str], last: bool = False) -> None:
        lines = [f"{method} {path} HTTP/1.1", "host: x", "content-type: application/json"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        await self.stream.send_all("\r\n".join([*lines, "", ""]).encode())

    async def send_body(self, data: bytes, *, last: bool) -> None:
        await self.stream.send_all(data)

    async def receive(self) -> None:
        piece = await self.stream.receive_some()
        self.raw += piece
        head, found, rest = self.raw.partition(b"\r\n\r\n")
        if found:
            lines = head.decode().split("\r\n")
            self.status = int(lines[0].split()[1])
            self.headers = dict(line.lower().split(": ", 1) for line in lines[1:])
            length = self.headers.get("content-length")
            self.over = (
                rest.endswith(b"\r\n0\r\n\r\n") or rest == b"0\r\n\r\n"
                if length is None
                else len(rest) >= int(length)
            )
            self.data = rest
        self.over = self.over or not piece


class Peer2(Peer):
    """One stream at a time, unless tests use ``connection`` themselves.

    Args:
        grants: window updates are sent as the data is taken.
    """

    def __init__(self, stream: trio.abc.Stream, socket: trio.socket.SocketType, grants: bool = True) -> None:
        super().__init__(stream, socket)
        self.grants = grants
        self.connection = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
        self.stream_id = 0
        self.events: list[h2.events.Event] = []
        self.closed = False

    async def start(self, **settings: int) -> None:
        for name, value in settings.items():
            code = h2.settings.SettingCodes[name]
            self.connection.local_settings[code] = value
            self.connection.local_settings.acknowledge()
        self.connection.initiate_connection()
        await self.flush()

    async def flush(self) -> None:
        await self.stream.send_all(self.connection.data_to_send())

    async def begin(self, method: str, path: str, headers: dict[str, str], last: bool = False) -> None:
        self.stream_id = self.connection.get_next_available_stream_id()
        self.over, self.data = False, b""
        pseudo = [(":method", method), (":path", path), (":scheme", "http"), (":authority", "x")]
        fields = {"content-type": "application/json", **headers}
        self.connection.send_headers(self.stream_id, [*pseudo, *fields.items()], end_stream=last)
        await self.flush()

    async def send_body(self, data: bytes, *, last: bool) -> None:
        while data:
            room = self.connection.local_flow_control_window(self.stream_id)
            piece, data = data[: min(room, 16384)], data[min(room, 16384) :]
            if not piece:
                await self.receive()
                if self.over:
                    return
            else:
                self.connection.send_data(self.stream_id, piece)
                await self.flush()
        if last:
            self.connection.end_stream(self.stream_id)
            await self.flush()

    async def receive(self) -> None:
        piece = await self.stream.receive_some()
        if not piece:
            self.closed = self.over = True
            return
        for event in self.connection.receive_data(piece):
            self.events.append(event)
            self._note(event)
        await self.flush()

    def _note(self, event: h2.events.Event) -> None:
        mine = getattr(event, "stream_id", None) == self.stream_id
        if isinstance(event, h2.events.DataReceived):
            if self.grants and event.flow_controlled_length:
                self.connection.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            if mine:
                self.data += event.data
        elif isinstance(event, h2.events.ConnectionTerminated):
            self.over = True
        elif mine and isinstance(event, h2.events.ResponseReceived):
            self.headers = dict(event.headers)
            self.status = int(self.headers[":status"])
        elif mine and isinstance(event, (h2.events.StreamEnded, h2.events.StreamReset)):
            self.over = True

    def seen(self, kind: type[h2.events.Event]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    async def until(self, condition: Callable[[], Any], seconds: float = 20) -> None:
        with trio.fail_after(seconds):
            while not condition():
                assert not self.closed, f"closed: {self.events[-5:]}"
                await self.receive()

    async def until_closed(self, seconds: float = 20) -> None:
        with trio.fail_after(seconds):
            while not self.closed:
                await self.receive()


PROTOCOLS = ("1.1", "2", "1.1 over TLS", "2 over TLS")


async def connect(server: Server, protocol: str, **options: Any) -> Peer:
    """A client that speaks one of :data:`PROTOCOLS`."""
    transport = await server.connect()
    stream: trio.abc.Stream = transport
    second = protocol.startswith("2")
    if "TLS" in protocol:
        context = client_side("h2" if second else "http/1.1")
        stream = trio.SSLStream(transport, context, server_hostname="127.0.0.1", https_compatible=True)
        await stream.do_handshake()
        assert stream.selected_alpn_protocol() == ("h2" if second else "http/1.1")
    if not second:
        return Peer1(stream, transport.socket)
    settings = options.pop("settings", {})
    peer = Peer2(stream, transport.socket, **options)
    await peer.start(**settings)
    return peer


def options_of(protocol: str) -> dict[str, Any]:
    """What a server needs for it, for ``serving``."""
    return {"tls": server_side(), "secure": client_side()} if "TLS" in protocol else {}
