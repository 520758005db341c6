"""Frames of the live page hold what the records and details say, with what is not shown left out before it is made."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs
import msgspec
import pytest
import trio

from luce.actors.tracing import planned, rows_of, snapshot
from luce.charts.loader import load_chart
from luce.engines.fake.engine import FakeEngine, fake_capabilities
from luce.engines.fake.times import Times
from luce.http.ui.live import MOST_STEPS, LiveEvents
from luce.replay.tracks import Tracks
from luce.trace.events import News
from tests.http.conftest import data_url, until
from tests.http.fake_model import live
from tests.http.test_service import body
from tests.http.ui.test_page import client_of

pytestmark = [pytest.mark.trio, pytest.mark.unrecorded]


def all_strips(tracks: Tracks, news: News) -> Iterator[list[Any]]:
    """Of every record and every detail, made in full."""
    details = list(news.details)
    for number, entry in enumerate([*news.entries, None], news.first):
        while details and (entry is None or details[0][0] <= number):
            _, t, make, given = details.pop(0)
            yield from map(plain, tracks.detail(t, make(*given)))
        if entry is not None:
            value = entry[6] if len(entry) > 6 else None
            yield from map(plain, tracks.record(entry[0], entry[1], entry[2], entry[5], value))


def plain(seen: Any) -> list[Any]:
    fields = [one.hex() if isinstance(one, bytes) else one for one in attrs.astuple(seen, recurse=False)]
    return [type(seen).__name__.lower(), *fields]


def told(source: LiveEvents, news: News) -> dict[str, Any]:
    frame: dict[str, Any] = msgspec.json.decode(source._frame(news, None, 0.0).removeprefix(b"data: "))
    return frame


@pytest.mark.parametrize("at_once", [False, True])
async def test_frames_say_what_records_and_details_do(at_once: bool) -> None:
    """In frames as they come, and in one that is thinned."""
    engine = FakeEngine(fake_capabilities(num_slots=3), times=Times(step=0.002))
    async with live(engine) as server, client_of(server) as client:
        service = server.service
        source = LiveEvents(service, None, dict)  # type: ignore[arg-type]
        reader = service.events.reader()
        tracks = Tracks(load_chart("block"), snapshot(service))
        many: list[News] = []
        async with trio.open_nursery() as nursery:
            for number in range(5):
                asked = body("hi", data_url(), max_tokens=30 + 5 * number)
                nursery.start_soon(lambda asked=asked: client.post("/v1/chat/completions", json=asked))
            while not at_once and len(nursery.child_tasks):
                await trio.sleep(0.002)
                many.append(reader.take())
        many.append(reader.take())
        assert sum(len(news.entries) for news in many) > 300
        strips, stands, stood, thinned = [], {}, {}, 0
        for news in many:
            expected = list(all_strips(tracks, news))
            frame = told(source, news)
            assert frame["strips"] == expected
            strips += expected
            steps = [list(entry) for entry in news.entries if len(entry) == 6]
            if len(news.entries) <= MOST_STEPS:
                assert frame["steps"] == msgspec.json.decode(msgspec.json.encode(steps))
            assert len(frame["steps"]) + frame["thinned"] == len(steps)
            thinned += frame["thinned"]
            stands |= {(one[1], one[2]): list(one[5]) for one in steps}
            stood |= {(one[1], one[2]): one[5] for one in frame["steps"]}
            assert stood == stands
        assert {strip[0] for strip in strips} == {"phase", "step", "encode", "counts"}
        assert len({strip[4] for strip in strips if strip[0] == "step"}) > 1, "lanes"
        assert max(strip[2] for strip in strips if strip[0] == "counts") >= 1, "somebody waited"
        assert thinned > 0 if at_once else any(0 < len(news.entries) <= MOST_STEPS for news in many)
        reader.close()
        source.close()


async def test_counts_follow_requests_to_their_end_and_blocks_to_their_release() -> None:
    """Nothing is planned or launched when the last request has ended; also where a page did not hear of it."""
    engine = FakeEngine(fake_capabilities(num_slots=3), times=Times(step=0.002))
    async with live(engine) as server, client_of(server) as client:
        service = server.service
        pool = service.loop.memory.pool
        source, deaf = (LiveEvents(service, None, dict) for _ in range(2))  # type: ignore[arg-type]
        hello = msgspec.json.decode(source.first().removeprefix(b"data: "))
        (counts,) = counts_in(hello)
        assert counts[1:] == [0, 0, 0, pool.num_blocks, 0], "before the first launch too"
        reader = service.events.reader()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(
                lambda: client.post("/v1/chat/completions", json=body("hi", data_url(), max_tokens=30))
            )
            await until(lambda: any(one[2] for one in counts_in(told(deaf, reader.take()))))
        await until(lambda: pool.held + pool.saving == 0)
        now = [0, 0, 0, pool.free, pool.cached]
        assert counts_in(told(source, source._reader.take()))[-1][1:] == now
        missed = reader.take()
        frame = told(deaf, missed._replace(entries=[], details=[], lost=len(missed.entries)))
        assert counts_in(frame)[-1][1:] == now
        for one in (reader, source, deaf):
            one.close()


def counts_in(frame: dict[str, Any]) -> list[list[Any]]:
    return [strip[1:] for strip in frame["strips"] if strip[0] == "counts"]


async def test_rows_of_a_decision_are_those_of_its_plan() -> None:
    engine = FakeEngine(fake_capabilities(num_slots=3))
    async with live(engine) as server, client_of(server) as client:
        reader = server.service.events.reader()
        await client.post("/v1/chat/completions", json=body("hi", data_url(), max_tokens=9))
        decisions = [given for _, _, make, given in reader.take().details if make is planned]
        assert len({rows_of(decision) for _, decision in decisions}) > 1
        for ahead, decision in decisions:
            assert rows_of(decision) == planned(ahead, decision).rows
        reader.close()
