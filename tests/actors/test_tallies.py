"""What is counted of all requests is what the requests did, under memory pressure and with steps ahead, too."""

from __future__ import annotations

import math
import random

import attrs
import prometheus_client
import pytest

from luce.actors.histogram import Histogram
from luce.actors.tallies import RequestTallies
from luce.engines.fake.engine import FakeEngine, Mode, fake_capabilities
from luce.trace.events import EventRecord
from tests.actors.harness import ask, read_all, serving, settled

pytestmark = pytest.mark.trio


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("park_bytes", [1 << 30, 0])
async def test_parked_requests_count_once(depth: int, park_bytes: int) -> None:
    """Tokens that are computed again after a drop were counted when they were made."""
    submissions = [ask(n, rows=10 + 7 * n % 23, tokens=20 + 13 * n % 90, images=n % 2) for n in range(10)]
    engine = FakeEngine(fake_capabilities(block_size=4, num_blocks=34, parking=True), mode=Mode.INLINE)
    async with serving(engine, depth=depth, park_bytes=park_bytes) as service:
        tallies = RequestTallies(service)
        waiting: set[str] = set()

        def look(record: EventRecord) -> None:
            waiting.update(live.phase for live in tallies.live.values())

        service.events.listen(look, machine="request")
        answers = await read_all(service, submissions)
        await settled(service)
        metrics = service.loop.metrics
    assert metrics.saves + metrics.drops > 0 and "parked" in waiting
    tokens = sum(len(answer.tokens) for answer in answers)
    assert tallies.generation_tokens == tokens
    assert sum(tallies.inter_token.counts) == tokens - len(submissions)
    assert tallies.prompt_tokens == sum(len(one.prompt.token_ids) for one in submissions)
    assert tallies.ended == {"stop": 0, "length": 10, "abort": 0, "error": 0}
    assert tallies.request_generation_tokens.sum == tokens
    for values in (tallies.queue_time, tallies.prefill_time, tallies.decode_time, tallies.latency):
        assert sum(values.counts) == len(submissions)
    assert tallies.live == {}


async def test_rows_ahead_of_the_end_are_no_tokens() -> None:
    """With two steps in flight a stop string ends an answer while one more token of it is being made."""
    engine = FakeEngine(fake_capabilities(max_depth=2), mode=Mode.INLINE)
    async with serving(engine, depth=2) as service:
        (free,) = await read_all(service, [ask(1, tokens=40)])
        await settled(service)
        late: list[EventRecord] = []

        def look(record: EventRecord) -> None:
            if record.event == "token" and "ending" in record.configuration:
                late.append(record)

        service.events.listen(look, machine="request")
        tallies = RequestTallies(service)
        stop = free.text[9:14]
        (cut,) = await read_all(service, [attrs.evolve(ask(1, tokens=40, stop=(stop,)), id="cut")])
        await settled(service)
    assert cut.end.reason == "stop"
    assert len(late) == 2, "the one that ended it, and one that came later"
    assert tallies.generation_tokens == len(cut.tokens) == tallies.request_generation_tokens.sum
    assert tallies.ended["stop"] == 1


@pytest.mark.parametrize("seed", range(3))
async def test_histograms_are_those_of_the_library(seed: int) -> None:
    bounds = (0.1, 0.5, 1, 2.5)
    ours = Histogram(bounds)
    theirs = prometheus_client.Histogram("x", "x", buckets=bounds, registry=None)
    draw = random.Random(seed)
    for value in [*bounds, *(draw.uniform(0, 4) for _ in range(200)), 0.0, math.nextafter(0.1, 1)]:
        ours.add(value)
        theirs.observe(value)
    (family,) = theirs.collect()
    expected = {sample.labels["le"]: sample.value for sample in family.samples if sample.name == "x_bucket"}
    assert dict(ours.cumulated()) == expected
    assert ours.sum == pytest.approx(next(s.value for s in family.samples if s.name == "x_sum"))
