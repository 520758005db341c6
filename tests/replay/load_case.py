"""Load that tests send to a server by the book, and what is told of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import trio

from luce.replay.load.bodies import Writer
from luce.replay.load.fire import Limits, fire
from luce.replay.load.probe import probe
from luce.replay.load.report import LoadReport
from luce.replay.load.request import LoadRequest
from luce.replay.load.tally import Tally
from luce.replay.load.target import parse_target
from luce.trace.traffic.request import TrafficRequest
from tests.replay.scripted_server import Scripted, scripted

FOREVER = 3600.0
BUSY = 0.5
"""Seconds for which nothing runs here."""


def plain(arrival: float = 0.0, prompt: int = 60, output: int = 4, **more: Any) -> LoadRequest:
    fields = {name: more.pop(name) for name in ("prefix_blocks", "block_size", "images") if name in more}
    return LoadRequest(TrafficRequest(arrival, prompt, output, **fields), **more)


def run(
    server: Scripted,
    requests: Iterable[LoadRequest],
    limits: Limits | None = None,
    *,
    without_pictures: bool = False,
) -> Tally:
    async def both() -> Tally:
        async with scripted(server):
            target = parse_target(server.url)
            writer = Writer(await probe(target, None), 0, 256, without_pictures)
            return await fire(target, iter(list(requests)), writer, limits or Limits())

    return trio.run(both)


def texts(body: dict[str, Any]) -> list[str]:
    return [
        message["content"] if isinstance(message["content"], str) else message["content"][0]["text"]
        for message in body["messages"]
    ]


def report_of(tally: Tally, **more: Any) -> LoadReport:
    return LoadReport("2030-01-01T00:00:00+00:00", "1", "http://h:1", "m", "azure: t.csv", {}, tally, **more)
