"""An OpenAI server that answers by the book: a token a word, as many pieces as are asked for, and everything noted."""

from __future__ import annotations

import json
import os
import ssl
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Literal

import attrs
import h11
import trio

OVERHEAD, PER_TURN = 7, 5
"""Prompt tokens around the first message and around each further one."""
PIXELS_PER_TOKEN = 1024


@attrs.frozen
class Stream:
    """A streamed answer byte for byte, and how it ends: by the book, by a connection that closes or by nothing."""

    content: bytes
    end: Literal["end", "close", "open"] = "end"


@attrs.define
class Scripted:
    """How it answers, and what it was asked.

    Args:
        strict: fields beyond OpenAI's are refused.
        tokenize: it has /tokenize.
        pictures: it takes them.
        pause: seconds before each piece.
        stop: seconds for which nothing in its thread runs, behind the first piece of each answer.
        fail: what goes wrong with a body: a status, 'close' for no answer, 'break' for one that ends in its middle,
            another answer, or nothing.
        silent: path at which it never says anything, or 'pictures': it says nothing to whoever shows it one.
        metrics: what /metrics says, made when it is asked.
    """

    strict: bool = False
    tokenize: bool = True
    pictures: bool = True
    pause: float = 0.0
    stop: float = 0.0
    fail: Callable[[dict[str, Any]], int | str | Stream | None] = lambda body: None
    silent: str | None = None
    metrics: Callable[[Scripted], str] | None = None
    port: int = 0
    tls: bool = False
    asked: list[dict[str, Any]] = attrs.field(factory=list)
    """Bodies of the streamed requests, in the order in which they came."""
    arrivals: list[float] = attrs.field(factory=list)
    pieces: list[int] = attrs.field(factory=list)
    """That were sent of each answer."""
    broken: int = 0
    """Clients that went away within their answers."""
    headers: list[dict[str, str]] = attrs.field(factory=list)

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"

    def prompt_tokens(self, messages: list[dict[str, Any]]) -> int:
        total = OVERHEAD + PER_TURN * (len(messages) - 1)
        for message in messages:
            content = message["content"]
            parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
            for part in parts:
                total += len(part["text"].split()) if part["type"] == "text" else _picture_tokens(part)
        return total

    async def serve(self, stream: trio.abc.Stream) -> None:
        try:
            async with stream:
                await self._serve(stream)
        except (OSError, trio.BrokenResourceError, h11.RemoteProtocolError):
            pass

    async def _serve(self, stream: trio.abc.Stream) -> None:
        wire = h11.Connection(h11.SERVER)
        request: h11.Request | None = None
        content = b""
        while True:
            event = wire.next_event()
            if event is h11.NEED_DATA:
                wire.receive_data(bytes(await stream.receive_some(1 << 16)))
            elif isinstance(event, h11.Request):
                request = event
            elif isinstance(event, h11.Data):
                content += event.data
            elif isinstance(event, h11.EndOfMessage):
                break
            else:
                return
        assert request is not None
        self.headers.append({name.decode(): value.decode() for name, value in request.headers})
        path = request.target.decode()
        if path == self.silent:
            await trio.sleep_forever()
        body = json.loads(content) if content else {}
        if self.silent == "pictures" and b"image_url" in content:
            await trio.sleep_forever()
        if path == "/v1/chat/completions" and body.get("stream"):
            await self._stream(stream, wire, body)
            return
        status, answer = self._answer(path, body)
        await _send(stream, wire, status, answer)

    def _answer(self, path: str, body: dict[str, Any]) -> tuple[int, str]:
        if path == "/v1/models":
            return 200, json.dumps({"data": [{"id": "scripted"}]})
        if path == "/tokenize" and self.tokenize:
            return 200, json.dumps({"tokens": list(range(len(body["prompt"].split())))})
        if path == "/metrics" and self.metrics is not None:
            return 200, self.metrics(self)
        if path == "/v1/chat/completions":
            if self.strict and "ignore_eos" in body:
                return 400, json.dumps({"error": {"message": "unknown field ignore_eos"}})
            with_picture = any(not isinstance(message["content"], str) for message in body["messages"])
            if with_picture and not self.pictures:
                return 400, json.dumps({"error": {"message": "no pictures here"}})
            return 200, json.dumps({"usage": {"prompt_tokens": self.prompt_tokens(body["messages"])}})
        return 404, "{}"

    async def _stream(self, stream: trio.abc.Stream, wire: h11.Connection, body: dict[str, Any]) -> None:
        number = len(self.asked)
        self.asked.append(body)
        self.arrivals.append(trio.current_time())
        self.pieces.append(0)
        wrong = self.fail(body)
        if isinstance(wrong, int):
            await _send(stream, wire, wrong, json.dumps({"error": {"message": "not today"}}))
            return
        if wrong == "close":
            return
        await stream.send_all(
            wire.send(h11.Response(status_code=200, headers=[("connection", "close")])) or b""
        )
        if isinstance(wrong, Stream):
            await self._as_given(stream, wire, wrong)
            return
        usage = {
            "prompt_tokens": self.prompt_tokens(body["messages"]),
            "completion_tokens": body["max_tokens"],
        }
        try:
            for index in range(body["max_tokens"]):
                if wrong == "break" and index == 1:
                    return
                await trio.sleep(self.pause)
                reason = "length" if index + 1 == body["max_tokens"] else None
                choice = {
                    "index": 0, "delta": {"content": "x" * self.width(body)}, "finish_reason": reason,
                }  # fmt: skip
                piece = _framed(wire, {"choices": [choice]})
                if self.stop and index == 0:
                    self._stop_behind(stream, piece)
                else:
                    await stream.send_all(piece)
                self.pieces[number] += 1
            await _event(stream, wire, {"choices": [], "usage": usage})
            await stream.send_all(wire.send(h11.Data(data=b"data: [DONE]\n\n")) or b"")
            await stream.send_all(wire.send(h11.EndOfMessage()) or b"")
        except (OSError, trio.BrokenResourceError):
            self.broken += 1

    async def _as_given(self, stream: trio.abc.Stream, wire: h11.Connection, given: Stream) -> None:
        await stream.send_all(wire.send(h11.Data(data=given.content)) or b"")
        if given.end == "end":
            await stream.send_all(wire.send(h11.EndOfMessage()) or b"")
        elif given.end == "open":
            await trio.sleep_forever()

    def _stop_behind(self, stream: Any, piece: bytes) -> None:
        """Whoever waits for the piece in this thread cannot look at it either."""
        assert os.write(stream.socket.fileno(), piece) == len(piece)
        time.sleep(self.stop)

    def width(self, body: dict[str, Any]) -> int:
        """Characters of a piece."""
        return 1


def _picture_tokens(part: dict[str, Any]) -> int:
    import base64
    import io

    from PIL import Image

    data = base64.b64decode(part["image_url"]["url"].split(",", 1)[1])
    width, height = Image.open(io.BytesIO(data)).size
    return width * height // PIXELS_PER_TOKEN


async def _send(stream: trio.abc.Stream, wire: h11.Connection, status: int, answer: str) -> None:
    data = answer.encode()
    headers = [("content-length", str(len(data))), ("connection", "close")]
    sent = wire.send(h11.Response(status_code=status, headers=headers)) or b""
    await stream.send_all(sent + (wire.send(h11.Data(data=data)) or b""))


async def _event(stream: trio.abc.Stream, wire: h11.Connection, value: Any) -> None:
    await stream.send_all(_framed(wire, value))


def _framed(wire: h11.Connection, value: Any) -> bytes:
    return wire.send(h11.Data(data=b"data: " + json.dumps(value).encode() + b"\n\n")) or b""


@asynccontextmanager
async def scripted(server: Scripted, tls: ssl.SSLContext | None = None) -> AsyncIterator[Scripted]:
    """It listens while the block runs, over TLS if there is a context."""
    listener = (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0]
    server.port, server.tls = listener.socket.getsockname()[1], tls is not None
    listeners: list[Any] = [
        listener if tls is None else trio.SSLListener(listener, tls, https_compatible=True)
    ]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, server.serve, listeners)
        yield server
        nursery.cancel_scope.cancel()


async def _alone() -> None:
    async with scripted(Scripted(pause=0.02)) as server:
        print(server.url, flush=True)
        await trio.sleep_forever()


if __name__ == "__main__":
    sys.exit(trio.run(_alone))
