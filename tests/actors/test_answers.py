"""Every request gets exactly the tokens it would get alone, whatever runs beside it."""

from __future__ import annotations

import random

import pytest
import trio

from luce.engines.fake.engine import FakeEngine, Mode, fake_capabilities
from luce.errors import CapacityError, DeviceError, RequestError
from tests.actors.harness import (
    ask,
    check_clean,
    expected,
    make_service,
    path_of,
    read,
    read_all,
    serving,
    settled,
)

pytestmark = pytest.mark.trio

MIXED = [ask(n, rows=5 + 9 * n % 41, tokens=3 + n % 9, images=n % 3) for n in range(12)]


@pytest.mark.parametrize("mode", [Mode.INLINE, Mode.THREAD])
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("budget", [1, 7, 64, None])
@pytest.mark.parametrize("slots", [1, 2, 4, 8])
async def test_answers_are_those_of_the_request_alone(
    slots: int, budget: int | None, depth: int, mode: Mode
) -> None:
    engine = FakeEngine(fake_capabilities(num_slots=slots), mode=mode)
    async with serving(engine, prefill_budget=budget, depth=depth) as service:
        answers = await read_all(service, MIXED)
        metrics = service.loop.metrics
    for submission, answer in zip(MIXED, answers, strict=True):
        assert answer.tokens == tuple(expected(submission))
        assert answer.end.reason == "length"
    if slots > 1:
        assert metrics.max_lanes > 1, "requests must share steps"


async def test_two_requests_of_one_length_differ() -> None:
    """Arms the test above: the tokens do depend on the content."""
    assert expected(ask(1)) != expected(ask(2))
    assert expected(ask(1, images=1)) != expected(ask(1))


async def test_requests_share_steps_instead_of_taking_turns() -> None:
    engine = FakeEngine(mode=Mode.INLINE)
    async with serving(engine, prefill_budget=None) as service:
        await read_all(service, [ask(n, tokens=50) for n in range(4)])
        assert service.loop.metrics.steps <= 52
        assert service.loop.metrics.max_lanes == 4


async def test_the_way_through_the_chart() -> None:
    engine = FakeEngine(mode=Mode.THREAD)
    async with serving(engine, prefill_budget=4) as service:
        await read_all(service, [ask(1), ask(2, images=2)])
        await settled(service)
        assert path_of(service, "r1") == [
            "queued",
            "staging_chunk",
            "decoding",
            "ending_finished",
            "finished",
        ]
        path = path_of(service, "r2")
        assert path[0:2] == ["queued", "encoding"] or path[0:2] == ["queued", "staging_chunk"]
        assert path[-3:] == ["decoding", "ending_finished", "finished"]


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("seed", range(6))
async def test_cancelling_neighbours_at_random_moments_changes_nothing(seed: int, depth: int) -> None:
    rng = random.Random(seed)
    engine = FakeEngine(fake_capabilities(num_slots=3), mode=Mode.THREAD)
    stay = [ask(n, rows=20, tokens=12, images=n % 3) for n in range(6)]
    async with serving(engine, prefill_budget=7, depth=depth) as service:

        async def neighbour(n: int) -> None:
            await trio.sleep(rng.random() * 0.02)
            handle = service.submit(ask(100 + n, rows=rng.randint(4, 60), tokens=30, images=n % 3))
            await trio.sleep(rng.random() * 0.02)
            handle.cancel()
            handle.cancel()
            assert (await read(handle)).end.reason in ("cancelled", "length")

        async with trio.open_nursery() as nursery:
            for n in range(12):
                nursery.start_soon(neighbour, n)
            answers = await read_all(service, stay)
    for submission, answer in zip(stay, answers, strict=True):
        assert answer.tokens == tuple(expected(submission))


async def test_slots_come_back_on_every_way_out() -> None:
    """B45: stop, length, cancel while queued, in prefill, while encoding, while decoding, and failures."""
    script = {7: ord("#")}

    def forced(spec: object, index: int) -> int | None:
        return script.get(index)

    engine = FakeEngine(fake_capabilities(num_slots=2), mode=Mode.THREAD, script=forced)
    async with serving(engine, prefill_budget=3) as service:
        ends = set()

        async def one(n: int) -> None:
            submission = ask(n, rows=12, tokens=20, images=n % 2, stop=("#",) if n % 5 == 0 else ())
            handle = service.submit(submission)
            if n % 5 == 1:
                handle.cancel()
            ends.add((await read(handle, until=4 if n % 5 == 2 else None)).end.reason)

        for start in range(0, 60, 6):
            async with trio.open_nursery() as nursery:
                for n in range(start, start + 6):
                    nursery.start_soon(one, n)
            await settled(service)
            assert not engine.open_slots
            service.loop.memory.check_integrity(())
        assert ends == {"stop", "length", "cancelled"}


async def test_a_failing_row_fails_its_request_alone() -> None:
    engine = FakeEngine(mode=Mode.THREAD)
    good = [ask(n, tokens=30) for n in range(3)]
    async with serving(engine) as service:
        bad = service.submit(ask(9, tokens=200))
        async with trio.open_nursery() as nursery:

            async def poison() -> None:
                await bad.next()
                slot = next(s for s, r in service.loop.running.items() if r.submission.id == "r9")
                engine.fail_row(slot)
                answer = await read(bad)
                assert answer.end.reason == "error"
                assert isinstance(answer.end.error, DeviceError)

            nursery.start_soon(poison)
            answers = await read_all(service, good)
        assert [a.tokens for a in answers] == [tuple(expected(s)) for s in good]
        again = await read_all(service, [ask(9, tokens=5)])
        assert again[0].tokens == tuple(expected(ask(9, tokens=5)))


async def test_a_failing_step_fails_the_requests_in_it_and_the_next_ones_work() -> None:
    engine = FakeEngine(mode=Mode.THREAD)
    async with serving(engine) as service:
        engine.fail_step(3)
        answers = await read_all(service, [ask(n, tokens=10) for n in range(3)])
        assert {a.end.reason for a in answers} == {"error"}
        assert (await read_all(service, [ask(5)]))[0].tokens == tuple(expected(ask(5)))


async def test_a_failing_picture_fails_its_request_alone_and_is_not_tried_again() -> None:
    """B43, and design-notes I3: each picture is encoded at most once."""
    engine = FakeEngine(mode=Mode.THREAD)
    bad, good = ask(1, images=3), ask(2, images=2)
    engine.fail_encode(bad.images[1].digest)
    async with serving(engine) as service:
        answers = await read_all(service, [bad, good])
        assert answers[0].end.reason == "error" and isinstance(answers[0].end.error, DeviceError)
        assert answers[1].tokens == tuple(expected(good))
        assert service.encoder.images_encoded == 4, "the third picture of the failed request never starts"


async def test_pictures_wait_for_a_slot_and_are_encoded_once() -> None:
    """B38: a busy pool re-encodes nothing."""
    engine = FakeEngine(fake_capabilities(num_slots=1), mode=Mode.THREAD)
    async with serving(engine, prefill_budget=2) as service:
        answers = await read_all(service, [ask(n, tokens=30, images=2) for n in range(3)])
        assert service.encoder.images_encoded == 6
        assert [a.end.reason for a in answers] == ["length"] * 3


async def test_queued_encodes_of_cancelled_requests_never_run() -> None:
    """B42: three of four are cancelled before their picture's turn; one encode runs, at most one more was on."""
    engine = FakeEngine(fake_capabilities(num_slots=4), mode=Mode.THREAD)
    gate = trio.Event()
    running = trio.Event()
    encode = engine.encode
    calls: list[bytes] = []

    def slow(image):  # type: ignore[no-untyped-def]
        calls.append(image.digest)
        trio.from_thread.run_sync(running.set)
        trio.from_thread.run(gate.wait)
        return encode(image)

    engine.encode = slow  # type: ignore[method-assign]
    async with serving(engine) as service:
        handles = [service.submit(ask(n, images=1)) for n in range(4)]
        await running.wait()
        first = int(calls[0].split(b"/")[0])
        others = [handle for n, handle in enumerate(handles) if n != first]
        for handle in others:
            handle.cancel()
        for handle in others:
            assert (await read(handle)).end.reason == "cancelled"
        gate.set()
        assert (await read(handles[first])).end.reason == "length"
        assert len(calls) == 1


async def test_what_can_never_fit_is_refused_at_once_with_the_numbers() -> None:
    engine = FakeEngine(fake_capabilities(max_context=64, num_blocks=3), mode=Mode.INLINE)
    async with serving(engine) as service:
        with pytest.raises(RequestError, match=r"60 tokens and max_tokens is 10.*context of 64"):
            service.submit(ask(1, rows=60, tokens=10))
        with pytest.raises(RequestError, match=r"needs 60 rows.*the whole pool has 48"):
            service.submit(ask(1, rows=50, tokens=10))
        assert (await read(service.submit(ask(1, rows=38, tokens=10)))).end.reason == "length"


async def test_the_queue_is_bounded() -> None:
    engine = FakeEngine(fake_capabilities(num_slots=1), mode=Mode.MANUAL)
    async with serving(engine, max_queued=2) as service:
        first = service.submit(ask(0))
        others = [service.submit(ask(n)) for n in (1, 2)]
        with pytest.raises(CapacityError, match="1 requests run and 2 wait"):
            service.submit(ask(3))
        for handle in [first, *others]:
            assert (await read(handle)).end.reason == "length"


async def test_the_queue_is_bounded_in_tokens_too() -> None:
    engine = FakeEngine(fake_capabilities(num_slots=1), mode=Mode.MANUAL)
    async with serving(engine, max_queued_tokens=70) as service:
        running = service.submit(ask(0, rows=100))
        one_alone = service.submit(ask(1, rows=65))
        with pytest.raises(CapacityError, match="prompts of 65 tokens wait, 10 more would exceed 70"):
            service.submit(ask(2, rows=10))
        fits = service.submit(ask(3, rows=5))
        for handle in (running, one_alone, fits):
            assert (await read(handle)).end.reason == "length"


async def test_free_slots_do_not_count_as_a_queue() -> None:
    """Requests that come together while slots are free are not sent away, also while the loop still coalesces."""
    engine = FakeEngine(fake_capabilities(num_slots=4), mode=Mode.INLINE)
    async with serving(engine, max_queued=0, max_queued_tokens=1) as service:
        handles = [service.submit(ask(n)) for n in range(4)]
        with pytest.raises(CapacityError):
            service.submit(ask(5))
        for handle in handles:
            assert (await read(handle)).end.reason == "length"


async def test_a_bug_in_an_actor_ends_the_service_and_tells_every_client() -> None:
    engine = FakeEngine(fake_capabilities(num_slots=2), mode=Mode.MANUAL)
    service = make_service(engine)
    ends: list[str] = []

    async def client(n: int) -> None:
        ends.append((await read(service.submit(ask(n)))).end.reason)

    with pytest.raises(BaseExceptionGroup):
        async with trio.open_nursery() as nursery:
            await nursery.start(service.run)
            nursery.start_soon(client, 1)
            nursery.start_soon(client, 2)
            await trio.sleep(0.05)
            service.loop._feed("turn.done")
    assert service.state == "failed"
    with pytest.raises(CapacityError, match="failed"):
        service.submit(ask(3))


async def test_check_clean_finds_a_leak() -> None:
    engine = FakeEngine(mode=Mode.MANUAL)
    service = make_service(engine)
    async with trio.open_nursery() as nursery:
        await nursery.start(service.run)
        service.submit(ask(0))
        await trio.sleep(0.05)
        with pytest.raises(AssertionError):
            check_clean(service, engine)
        nursery.start_soon(engine.drive)
        await settled(service)
        check_clean(service, engine)
        service.drain()
        await service.stopped()
        nursery.cancel_scope.cancel()
