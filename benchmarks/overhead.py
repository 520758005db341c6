"""What the HTTP side costs the server, beside an application without anything on Quart and Hypercorn as they come.

Server CPU seconds, of the whole process, so that actors, plans and text are in luce's figures: what they take alone is
in the benchmark `turns`. The engine computes nothing. The last figure is what is left for HTTP when that is taken off.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import psutil  # type: ignore[import-untyped]
import trio

from benchmarks.http_child import SLOTS
from benchmarks.measure import Result, quiet_median

__all__ = ["main"]

REQUESTS = 300
TOKENS = 200
RUNS = 3
GOAL = 150.0
"""Microseconds of server CPU for a streamed token, with 64 streams."""

BODY = {"messages": [{"role": "user", "content": "x" * 1000}], "temperature": 0, "max_tokens": 1}

Client = Callable[[int], Awaitable[int]]


def main() -> list[Result]:
    with _child("luce") as luce, _child("quart") as quart:

        def measured(
            name: str, unit: str, child: _Child, client: Client, goal: float | None = None
        ) -> Result:
            return quiet_median(name, unit, lambda: child.cost(client), goal=goal, runs=RUNS)

        whole, streamed = _post("/v1/chat/completions", BODY), {**BODY, "stream": True, "max_tokens": TOKENS}
        return [
            measured("one request and its answer of one token", "µs", luce, _requests(whole)),
            measured("…bare Quart, echo", "µs", quart, _requests(_post("/echo", BODY))),
            measured(
                f"one token, {SLOTS} streams",
                "µs",
                luce,
                _streams(_post("/v1/chat/completions", streamed)),
                GOAL,
            ),
            measured("…bare Quart", "µs", quart, _streams(_post(f"/stream/{TOKENS}", BODY))),
        ]


def _post(path: str, body: object) -> bytes:
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
    return head.encode() + data


class _Child:
    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self._process = psutil.Process(process.pid)
        self._port = port

    def _seconds(self) -> float:
        times = self._process.cpu_times()
        return float(times.user + times.system)

    def cost(self, client: Client) -> float:
        """Microseconds of the server for each thing that ``client`` counts."""
        before = self._seconds()
        count = trio.run(client, self._port)
        return 1e6 * (self._seconds() - before) / count


@contextmanager
def _child(which: str) -> Iterator[_Child]:
    command = [sys.executable, "-m", "benchmarks.http_child", which]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield _Child(process, int(process.stdout.readline()))
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def _requests(asked: bytes) -> Client:
    async def client(port: int) -> int:
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            for _ in range(REQUESTS):
                await stream.send_all(asked)
                data = b""
                while b"\r\n\r\n" not in data or data.endswith(b"\r\n\r\n"):
                    data += await stream.receive_some()
                assert data.startswith(b"HTTP/1.1 200"), data[:200]
                length = int(data.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                while len(data.partition(b"\r\n\r\n")[2]) < length:
                    data += await stream.receive_some()
        return REQUESTS

    return client


def _streams(asked: bytes) -> Client:
    async def client(port: int) -> int:
        pieces = 0

        async def one() -> None:
            nonlocal pieces
            async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                await stream.send_all(asked)
                data = b""
                while not data.endswith(b"0\r\n\r\n"):
                    data += await stream.receive_some()
                assert data.startswith(b"HTTP/1.1 200") and b"[DONE]" in data, data[:200]
                pieces += data.count(b"\r\ndata: ")

        async with trio.open_nursery() as nursery:
            for _ in range(SLOTS):
                nursery.start_soon(one)
        # every token came in a chunk of its own, but for those that were ready together
        assert pieces > 0.7 * TOKENS * SLOTS, f"{pieces} chunks of {TOKENS * SLOTS} tokens"
        return TOKENS * SLOTS

    return client
