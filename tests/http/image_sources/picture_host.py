"""A host with pictures, on a loopback port, that answers each path with whole bytes as they are written here."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial

import attrs
import trio

from tests.vision.pictures import encode, noise

__all__ = ["PICTURE", "Host", "answer", "hosting"]

PICTURE = encode(noise(16, 16))


def answer(body: bytes = PICTURE, status: str = "200 OK", **headers: str) -> bytes:
    """With a length, unless ``content_length`` says otherwise; "" leaves a header out."""
    given = {"content_length": str(len(body)), "connection": "close"} | headers
    lines = [f"{name.replace('_', '-')}: {value}\r\n" for name, value in given.items() if value]
    return f"HTTP/1.1 {status}\r\n{''.join(lines)}\r\n".encode() + body


@attrs.define(eq=False)
class Host:
    answers: Mapping[str, bytes | None]
    """By path; None never answers."""
    port: int = 0
    asked: list[bytes] = attrs.field(factory=list)
    """Heads of requests."""
    left: int = 0
    """Clients that went away from one that never answers."""
    context: ssl.SSLContext | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def handle(self, stream: trio.abc.Stream) -> None:
        if self.context is not None:
            stream = trio.SSLStream(stream, self.context, server_side=True, https_compatible=True)
        try:
            async with stream:
                head = b""
                while not head.endswith(b"\r\n\r\n"):
                    piece = await stream.receive_some()
                    head += piece
                    if not head.startswith(b"G"):  # TLS, where none is spoken, or nothing
                        await stream.send_all(b"HTTP/1.0 400 Bad\r\n\r\n")
                        return
                self.asked.append(head)
                path = head.split()[1].decode().partition("?")[0]
                said = self.answers.get(path, answer(b"", "404 Not Found"))
                if said is None:
                    await stream.receive_some()
                    self.left += 1
                else:
                    await stream.send_all(said)
        except (trio.BrokenResourceError, ssl.SSLError):
            pass


@asynccontextmanager
async def hosting(
    answers: Mapping[str, bytes | None], context: ssl.SSLContext | None = None
) -> AsyncIterator[Host]:
    host = Host(answers, context=context)
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, host.handle, 0, host="127.0.0.1"))
        host.port = listeners[0].socket.getsockname()[1]
        yield host
        nursery.cancel_scope.cancel()
