"""Crowds of clients against one server: many that stream and come again when there is no room, many that leave."""

from __future__ import annotations

import json
import re
import socket
import struct
import time
from collections.abc import Callable
from random import Random
from typing import Any

import attrs
import httpx
import psutil  # type: ignore[import-untyped]
import trio

__all__ = ["POINTS", "Served", "Standing", "ask_all", "come_and_go", "question", "standing"]

Question = dict[str, Any]


def question(number: int, tokens: int) -> Question:
    """One of its own for every number: text, seed, and half of them sampled."""
    return {
        "messages": [
            {"role": "user", "content": f"Count from {number} to {number + 9} and say why, {number}."}
        ],
        "temperature": 0.9 * (number % 2),
        "seed": number,
        "max_tokens": tokens,
        "ignore_eos": True,
        "stream": True,
    }


@attrs.define
class Served:
    """What a crowd got."""

    answers: dict[int, str] = attrs.field(factory=dict)
    gaps: list[float] = attrs.field(factory=list)
    """Seconds between two pieces of an answer."""
    refusals: int = 0
    """503 with Retry-After, which was waited for."""


async def ask_all(url: str, questions: dict[int, Question], at_once: int | None = None) -> Served:
    """Ask all, ``at_once`` at a time (all by default). Whoever is refused comes again as late as it is told.

    Raises:
        AssertionError: an answer that is neither whole nor refused with Retry-After.
    """
    served, places = Served(), trio.CapacityLimiter(at_once or len(questions))
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with (
        httpx.AsyncClient(base_url=url, timeout=600, limits=limits, verify=False) as client,
        trio.open_nursery() as nursery,
    ):
        for number, asked in questions.items():
            nursery.start_soon(_one, client, number, asked, served, places)
    return served


async def _one(
    client: httpx.AsyncClient, number: int, asked: Question, served: Served, places: trio.CapacityLimiter
) -> None:
    async with places:
        while True:
            async with client.stream("POST", "/v1/chat/completions", json=asked) as response:
                if response.status_code == 200:
                    served.answers[number] = await _read(response, served)
                    return
                assert response.status_code == 503, (response.status_code, await response.aread())
                pause = float(response.headers["retry-after"])
            served.refusals += 1
            await trio.sleep(pause * (1 + number % 7 / 7))  # not all at the same moment again


async def _read(response: httpx.Response, served: Served) -> str:
    pieces: list[str] = []
    last, finished, reason = None, False, None
    async for line in response.aiter_lines():
        if line == "data: [DONE]":
            finished = True
        elif line.startswith("data: "):
            event = json.loads(line.removeprefix("data: "))
            assert "error" not in event, event
            choice = event["choices"][0]
            reason = choice["finish_reason"] or reason
            if text := choice["delta"].get("content"):
                now = time.perf_counter()
                if last is not None:
                    served.gaps.append(now - last)
                last = now
                pieces.append(text)
    assert finished and reason == "length", f"an answer broke off: {reason} after {len(pieces)} pieces"
    return "".join(pieces)


# -- who leaves ---------------------------------------------------------------------------------------------------

POINTS = ("connected", "in the head", "in the body", "asked", "in the stream")
"""Where a client may leave."""


async def come_and_go(url: str, count: int, at_once: int, seed: int = 0) -> dict[str, int]:
    """So many clients that leave, one after the other at every point, half of them by a reset. How many left where."""
    port = int(url.rsplit(":", 1)[1])
    rng, left, places = Random(seed), dict.fromkeys(POINTS, 0), trio.CapacityLimiter(at_once)

    async def one(number: int, asked: bytes, reset: bool) -> None:
        async with places:
            point = POINTS[number % len(POINTS)]
            try:
                await _leave(port, point, asked, reset)
            except (trio.BrokenResourceError, OSError):
                pass  # the server had gone first, as from one that it refused
            left[point] += 1

    async with trio.open_nursery() as nursery:
        for number in range(count):
            body = json.dumps(question(number % 1000, 200)).encode()
            head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n".encode()
            point = number % len(POINTS)
            cut = [0, rng.randrange(len(head)), len(head) + rng.randrange(len(body))][min(point, 2)]
            asked = head + body if point > 2 else (head + body)[:cut]
            nursery.start_soon(one, number, asked, rng.random() < 0.5)
    return left


async def _leave(port: int, point: str, asked: bytes, reset: bool) -> None:
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        if reset:
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if asked:
            await stream.send_all(asked)
        if point == "asked":
            with trio.move_on_after(0.05):
                await stream.receive_some()
        elif point == "in the stream":
            data = b""
            with trio.move_on_after(2):
                while data.count(b"data: ") < 4 and b" 503 " not in data:
                    piece = await stream.receive_some()
                    if not piece:
                        break
                    data += piece


# -- what is left behind ------------------------------------------------------------------------------------------


@attrs.frozen
class Standing:
    """What a server holds at a moment. Blocks are those that requests hold; kept prefixes are the cache's."""

    requests: int
    slots: int
    blocks: int
    tasks: int
    files: int
    threads: int


def standing(url: str, pid: int) -> Standing:
    """Of a server that nobody asks anything at the time, on a connection of its own."""
    with httpx.Client(base_url=url, timeout=60, verify=False) as client:
        slots = client.get("/slots").json()
        metrics = client.get("/metrics").text
    process = psutil.Process(pid)
    return Standing(
        requests=len(slots["requests"]),
        slots=slots["slots"] - slots["free"],
        blocks=_metric(metrics, r'luce:kv_blocks{[^}]*use="held"[^}]*}'),
        tasks=_metric(metrics, r"luce:tasks{[^}]*}"),
        files=process.num_fds(),
        threads=process.num_threads(),
    )


def _metric(text: str, name: str) -> int:
    found = re.search(rf"^{name} (\S+)$", text, re.M)
    assert found is not None, f"no metric {name}"
    return int(float(found[1]))


async def at_rest(url: str, pid: int, enough: Callable[[Standing], bool], seconds: float = 30) -> Standing:
    """What it holds once ``enough``, or after so many seconds."""
    end = trio.current_time() + seconds
    while True:
        now = await trio.to_thread.run_sync(standing, url, pid)
        if enough(now) or trio.current_time() > end:
            return now
        await trio.sleep(0.2)
