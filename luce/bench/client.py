"""Clients of a server in a process of their own, so that what they cost is not the server's.

`python -m luce.bench.client` reads a JSON :class:`Job` from standard input, sends its requests at once, each on a
connection of its own, and writes :class:`Answer` values as JSON to standard output. Times are those of the monotonic
clock, which all processes of a machine share.
"""

from __future__ import annotations

import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import h11
import msgspec
import trio
from msgspec import Struct

__all__ = ["Answer", "Ask", "Job"]

PIECE = 1 << 16


class Ask(Struct, frozen=True):
    """A streamed request."""

    path: str
    body: msgspec.Raw
    """JSON, with ``stream`` and ``stream_options.include_usage``."""
    behind: tuple[int, int] | None = None
    """(another request, n): sent when that one has got n pieces. None: at once."""


class Job(Struct, frozen=True):
    host: str
    port: int
    asks: list[Ask]


class Answer(Struct, frozen=True):
    asked: float
    """When the request was sent."""
    pieces: list[float]
    """When each piece of text came."""
    ended: float
    tokens: int
    """As the server counts them; text may come in fewer pieces."""
    prompt_tokens: int
    error: str | None = None
    """What the server said instead of an answer."""


class _Delta(Struct):
    content: str | None = None
    reasoning_content: str | None = None


class _Choice(Struct):
    text: str | None = None
    delta: _Delta | None = None

    @property
    def said(self) -> bool:
        delta = self.delta or _Delta()
        return bool(self.text or delta.content or delta.reasoning_content)


class _Usage(Struct):
    completion_tokens: int
    prompt_tokens: int


class _Chunk(Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: dict[str, Any] | None = None


class _Progress:
    """How many pieces a request has got, for those that are sent behind it."""

    def __init__(self) -> None:
        self.pieces: list[float] = []
        self._ended = False
        self._waiting: list[tuple[int, trio.Event]] = []

    def add(self, when: float) -> None:
        self.pieces.append(when)
        self._wake()

    async def reach(self, count: int) -> None:
        """Until there are so many, or no more will come."""
        event = trio.Event()
        self._waiting.append((count, event))
        self._wake()
        await event.wait()

    def end(self) -> None:
        """No more will come."""
        self._ended = True
        self._wake()

    def _wake(self) -> None:
        for count, event in self._waiting:
            if self._ended or len(self.pieces) >= count:
                event.set()


async def run(job: Job) -> list[Answer]:
    """All requests of a job; answers in their order."""
    progress = [_Progress() for _ in job.asks]
    answers: dict[int, Answer] = {}

    async def one(index: int, ask: Ask) -> None:
        try:
            if ask.behind is not None:
                await progress[ask.behind[0]].reach(ask.behind[1])
            answers[index] = await _ask(job, ask, progress[index])
        finally:
            progress[index].end()

    async with trio.open_nursery() as nursery:
        for index, ask in enumerate(job.asks):
            nursery.start_soon(one, index, ask)
    return [answers[index] for index in range(len(job.asks))]


async def _ask(job: Job, ask: Ask, progress: _Progress) -> Answer:
    stream = await trio.open_tcp_stream(job.host, job.port)
    async with stream:
        wire = h11.Connection(h11.CLIENT)
        body = bytes(ask.body)
        headers = [
            ("host", f"{job.host}:{job.port}"),
            ("content-type", "application/json"),
            ("content-length", str(len(body))),
        ]
        asked = time.perf_counter()
        head = wire.send(h11.Request(method="POST", target=ask.path, headers=headers)) or b""
        await stream.send_all(head + (wire.send(h11.Data(data=body)) or b""))
        wire.send(h11.EndOfMessage())
        tokens = prompt_tokens = 0
        async for line in _lines(stream, wire):
            now = time.perf_counter()
            if not line.startswith(b"data: {"):
                if line.startswith(b"!"):
                    return Answer(asked, [], now, 0, 0, line[1:].decode(errors="replace"))
                continue
            chunk = msgspec.json.decode(line[len(b"data: ") :], type=_Chunk)
            if chunk.error is not None:
                return Answer(asked, progress.pieces, now, tokens, 0, str(chunk.error.get("message")))
            if chunk.usage is not None:
                tokens, prompt_tokens = chunk.usage.completion_tokens, chunk.usage.prompt_tokens
            elif any(choice.said for choice in chunk.choices):
                progress.add(now)
        return Answer(asked, progress.pieces, time.perf_counter(), tokens, prompt_tokens)


async def _lines(stream: trio.SocketStream, wire: h11.Connection) -> AsyncIterator[bytes]:
    """Lines of a streamed answer; an answer with another status is one line behind an exclamation mark."""
    rest, refused = b"", False
    while True:
        event = wire.next_event()
        if event is h11.NEED_DATA:
            wire.receive_data(bytes(await stream.receive_some(PIECE)))
        elif isinstance(event, h11.Response):
            refused = event.status_code != 200
        elif isinstance(event, h11.Data):
            rest += event.data
            if not refused:
                *lines, rest = rest.split(b"\n")
                for line in lines:
                    yield line
        elif isinstance(event, h11.EndOfMessage | h11.ConnectionClosed):
            if refused:
                yield b"!" + rest
            return


def main() -> None:
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=Job)
    sys.stdout.buffer.write(msgspec.json.encode(trio.run(run, job)))


if __name__ == "__main__":
    main()
