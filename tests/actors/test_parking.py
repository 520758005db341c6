"""Under memory pressure requests give way and come back, and no answer shows it."""

from __future__ import annotations

import random
from typing import Any

import attrs
import pytest
import trio

from luce.actors.flight import StepMetrics
from luce.actors.submission import Submission
from luce.engines.fake.engine import FakeEngine, Mode, fake_capabilities
from luce.errors import CapacityError
from luce.trace.events import EventRecord
from tests.actors.harness import Answer, ask, check_clean, expected, path_of, read, read_all, serving, settled

pytestmark = pytest.mark.trio

# Four lanes of 8 to 17 blocks at their longest, on a pool that holds two of the longest.
GREEDY = [ask(n, rows=10 + 7 * n % 23, tokens=20 + 13 * n % 90, images=n % 2) for n in range(10)]
SMALL = {"block_size": 4, "num_blocks": 34, "parking": True}


def engine_of(mode: Mode = Mode.INLINE, **changes: Any) -> FakeEngine:
    return FakeEngine(fake_capabilities(**(SMALL | changes)), mode=mode)


async def run(
    engine: FakeEngine, submissions: list[Submission], **options: Any
) -> tuple[list[Answer], StepMetrics]:
    async with serving(engine, **options) as service:
        answers = await read_all(service, submissions)
        await settled(service)
        check_clean(service, engine)
        return answers, service.loop.metrics


def all_right(answers: list[Answer], submissions: list[Submission]) -> None:
    for submission, answer in zip(submissions, answers, strict=True):
        assert answer.end.reason == "length", answer.end
        assert answer.tokens == tuple(expected(submission))


@pytest.mark.parametrize("mode", [Mode.INLINE, Mode.THREAD])
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("budget", [1, 7, None])
async def test_saved_requests_go_on_where_they_were(mode: Mode, depth: int, budget: int | None) -> None:
    answers, metrics = await run(
        engine_of(mode), GREEDY, prefill_budget=budget, depth=depth, park_bytes=1 << 30
    )
    all_right(answers, GREEDY)
    assert metrics.saves >= 1 and metrics.resumes == metrics.saves + metrics.drops, metrics


@pytest.mark.parametrize("mode", [Mode.INLINE, Mode.THREAD])
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("budget", [1, 7, None])
async def test_dropped_requests_are_computed_again(mode: Mode, depth: int, budget: int | None) -> None:
    answers, metrics = await run(engine_of(mode), GREEDY, prefill_budget=budget, depth=depth, park_bytes=0)
    all_right(answers, GREEDY)
    assert metrics.drops >= 3 and metrics.saves == 0, metrics


async def test_with_little_host_memory_some_are_saved_and_some_dropped() -> None:
    engine = engine_of(bytes_per_snapshot=100, bytes_per_token=10)
    answers, metrics = await run(engine, GREEDY, park_bytes=700)
    all_right(answers, GREEDY)
    assert metrics.saves and metrics.drops, metrics


async def test_without_pressure_nobody_is_parked() -> None:
    """Arms the tests above: it is the small pool that parks."""
    answers, metrics = await run(engine_of(num_blocks=400), GREEDY)
    all_right(answers, GREEDY)
    assert metrics.saves == metrics.drops == metrics.resumes == 0


async def test_a_request_that_cannot_be_built_again_is_saved_but_never_dropped() -> None:
    """Its growth is promised at admission, so that two of them cannot deadlock (I4, I12)."""
    engine = engine_of(images_recomputable=False)
    async with serving(engine, park_bytes=0) as service:
        answers = await read_all(service, GREEDY)
        await settled(service)
        for submission in GREEDY:
            if submission.images:
                assert not any(step.startswith("parked") for step in path_of(service, submission.id))
        assert service.loop.metrics.drops > 0
    all_right(answers, GREEDY)


async def test_sampled_answers_survive_too() -> None:
    sampled = [
        ask(n, rows=12, tokens=60, temperature=1.0, repetition_penalty=1.3, min_tokens=50, seed=n)
        for n in range(6)
    ]
    for park_bytes in (0, 1 << 30):
        answers, metrics = await run(engine_of(), sampled, park_bytes=park_bytes)
        all_right(answers, sampled)
        assert metrics.saves + metrics.drops > 0


@pytest.mark.parametrize("park_bytes", [0, 900, 1 << 30])
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("seed", range(5))
async def test_cancels_at_random_moments_leave_nothing_behind(seed: int, depth: int, park_bytes: int) -> None:
    rng = random.Random(seed)
    engine = engine_of(Mode.THREAD, bytes_per_snapshot=100, bytes_per_token=10)
    answers: dict[str, Answer] = {}

    async with serving(engine, depth=depth, park_bytes=park_bytes, prefill_budget=7) as service:

        async def one(submission: Submission, until: int | None) -> None:
            answers[submission.id] = await read(service.submit(submission), until)

        stays = {submission.id: rng.random() < 0.5 for submission in GREEDY}
        async with trio.open_nursery() as nursery:
            for submission in GREEDY:
                nursery.start_soon(one, submission, None if stays[submission.id] else rng.randrange(30))
        await settled(service)
        check_clean(service, engine)
    for submission in GREEDY:
        tokens = answers[submission.id].tokens
        assert tokens == tuple(expected(submission))[: len(tokens)]
        if stays[submission.id]:
            assert answers[submission.id].end.reason == "length"


async def test_first_come_first_served_also_through_parking() -> None:
    """Nobody is granted a slot while somebody is parked, and the oldest comes back first (I8)."""
    engine = engine_of()
    came_back: list[str] = []
    async with serving(engine, park_bytes=1 << 30) as service:
        loop = service.loop

        def watch(record: EventRecord) -> None:
            if record.event == "slot.granted":
                assert not loop.parked
            elif record.event == "resume":
                order = next(r.order for r in loop.running.values() if r.submission.id == record.id)
                assert all(order < other for other in loop.parked)
                came_back.append(str(record.id))

        service.events.listen(watch)
        await read_all(service, GREEDY)
    assert len(came_back) >= 3


async def test_a_request_that_needs_the_whole_pool_runs_alone() -> None:
    long = ask(50, rows=10, tokens=34 * 4 - 10)
    submissions = [*GREEDY[:3], long]
    answers, _ = await run(engine_of(), submissions, park_bytes=1 << 30)
    all_right(answers, submissions)


@pytest.mark.unrecorded  # what its engine declares changes on the way
async def test_when_nothing_can_give_way_one_request_fails_and_says_why() -> None:
    engine = engine_of(recomputable=False, parking=False, num_blocks=12)
    pair = [ask(1, rows=4, tokens=40), ask(2, rows=4, tokens=40)]
    answers, _ = await run(engine, pair)
    all_right(answers, pair)  # promised in full: they run one after the other

    engine = engine_of(parking=False, num_blocks=12)
    async with serving(engine, depth=1) as service:
        both_decode = trio.Event()

        def watch(_: EventRecord) -> None:
            if all(request.num_generated for request in service.requests.values()):
                both_decode.set()

        handles = [service.submit(submission) for submission in pair]
        service.events.listen(watch)
        await both_decode.wait()
        for request in service.requests.values():  # a promise that is broken later
            request.capabilities = attrs.evolve(request.capabilities, recomputable=False)
        results = [await read(handle) for handle in handles]
    assert [result.end.reason for result in results] == ["length", "error"]
    error = results[1].end.error
    assert isinstance(error, CapacityError) and "nothing else can give way" in str(error)
    assert results[0].tokens == tuple(expected(pair[0]))
