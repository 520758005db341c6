"""What the machine has left is the only thing that actors read of it: recorded, and with the same answers the same day.

In virtual time, from a seed: what differs between two runs is the memory alone.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import attrs
import trio

from luce.actors.flight import StepMetrics
from luce.actors.free_memory import FreeMemory
from luce.engines.fake.engine import Mode, fake_capabilities
from luce.engines.fake.times import Times
from luce.trace.events import EventRecord
from tests.actors.harness import ask, check_clean, expected, make_service, read_all, settled
from tests.sim.virtual_time import run_seeded
from tests.sim.watch import WatchedEngine

GREEDY = [ask(n, rows=10 + 7 * n % 23, tokens=20 + 13 * n % 90, images=n % 2) for n in range(10)]
CAPABILITIES = fake_capabilities(
    block_size=4, num_blocks=34, parking=True, bytes_per_snapshot=100, bytes_per_token=10
)

Probe = tuple[str, int | None]


@attrs.frozen
class Day:
    records: tuple[EventRecord, ...]
    plans: str
    """Digest of all of them."""
    metrics: StepMetrics

    @property
    def probes(self) -> list[Probe]:
        return [(str(r.id), r.value) for r in self.records if r.machine == "memory"]


def serve(free_memory: FreeMemory, **options: Any) -> Day:
    """A day on a pool that is too small, with exact answers whatever the memory."""

    async def run() -> Day:
        engine = WatchedEngine(CAPABILITIES, times=Times(step=0.01, patch=0.002), mode=Mode.MANUAL)
        service = make_service(engine, free_memory=free_memory, **options)
        async with trio.open_nursery() as nursery:
            await nursery.start(service.run)
            nursery.start_soon(engine.drive)
            for submission, answer in zip(GREEDY, await read_all(service, GREEDY), strict=True):
                assert answer.tokens == tuple(expected(submission))
            await settled(service)
            check_clean(service, engine)
            nursery.cancel_scope.cancel()
        return Day(tuple(service.events), engine.plans.hexdigest(), service.loop.metrics)

    return run_seeded(1, run)


def changing(seed: int) -> FreeMemory:
    """A machine on which others come and go: room for a saved request, for none, or nothing known."""
    rng = random.Random(seed)
    return lambda use: rng.choice([None, 0, 1_500, 4_000, 10_000])


def replayed(probes: Sequence[Probe]) -> FreeMemory:
    """The recorded answers in their order; another question than the recorded one is another day."""
    left: Iterator[Probe] = iter(probes)

    def free(use: str) -> int | None:
        asked, value = next(left)
        assert asked == use
        return value

    return free


def test_the_same_answers_give_the_same_day() -> None:
    first = serve(changing(1))
    assert first.metrics.saves and first.metrics.drops, "the answers must matter"
    assert [use for use, _ in first.probes[:2]] == ["prefix", "image"]
    assert sum(use == "park" for use, _ in first.probes) > 3
    again = serve(replayed(first.probes))
    assert again.plans == first.plans
    assert again.records == first.records


def test_other_answers_give_another_day() -> None:
    """Arms the test above: all else is equal."""
    first = serve(changing(1))
    assert serve(changing(2)).plans != first.plans
    always = serve(lambda use: 1 << 30)
    assert always.metrics.saves and not always.metrics.drops


def test_the_machine_is_not_asked_when_budgets_are_given() -> None:
    def nobody(use: str) -> int | None:
        raise AssertionError(use)

    day = serve(nobody, park_bytes=1_000, prefix_bytes=5_000, image_bytes=1_000)
    assert day.probes == [] and day.metrics.drops
