"""Requests that show the same picture: one encode for all of them, and nobody's leaving costs another anything."""

from __future__ import annotations

import logging
import random
from typing import Any

import attrs
import numpy.typing as npt
import pytest
import trio
import trio.testing

from luce.actors.service import Service
from luce.actors.submission import Submission
from luce.engines.fake.engine import FakeEngine, Mode, fake_capabilities
from luce.engines.fake.pictures import make_picture
from luce.engines.seam import PatchImage
from luce.errors import DeviceError
from tests.actors.harness import (
    ask,
    check_clean,
    expected,
    make_prompt,
    path_of,
    read,
    read_all,
    serving,
    settled,
)

pytestmark = pytest.mark.trio

ROOM = 1 << 20
ONE = 4 * 8 * 4
"""Bytes of one picture's rows: 4 of 8 float32."""


def showing(name: int, *pictures: bytes, rows: int = 10, tokens: int = 8) -> Submission:
    """A request of its own about these pictures: no two share a prefix."""
    images = tuple(map(make_picture, pictures))
    return attrs.evolve(ask(name, tokens=tokens), prompt=make_prompt(name, rows, images), images=images)


class Gated(FakeEngine):
    """Encodes on trio's clock, each picture when the test lets it."""

    def __init__(self, **changes: Any) -> None:
        super().__init__(fake_capabilities(**changes), mode=Mode.MANUAL)
        self.begun: list[bytes] = []
        self.gate = trio.Event()

    async def encode_async(self, image: PatchImage) -> npt.NDArray[Any]:
        self.begun.append(image.digest)
        await self.gate.wait()
        return await super().encode_async(image)


async def answer_of(service: Service, submission: Submission) -> None:
    """Ask, and see that the answer is right."""
    assert (await read(service.submit(submission))).tokens == tuple(expected(submission))
    await settled(service)


@pytest.mark.parametrize("mode", [Mode.INLINE, Mode.THREAD, Mode.MANUAL])
@pytest.mark.parametrize("depth", [1, 2])
async def test_six_requests_on_four_slots_and_one_encode(mode: Mode, depth: int) -> None:
    engine = FakeEngine(fake_capabilities(num_slots=4), mode=mode)
    six = [showing(n, b"P") for n in range(6)]
    async with serving(engine, depth=depth, image_bytes=ROOM) as service:
        answers = await read_all(service, six)
        assert [answer.tokens for answer in answers] == [tuple(expected(one)) for one in six]
        encoder = service.encoder
        assert encoder.images_encoded == 1 and encoder.hits + encoder.joins == 5


async def test_while_it_is_encoded_others_join() -> None:
    engine = Gated(num_slots=4)
    async with serving(engine) as service:
        handles = [service.submit(showing(n, b"P")) for n in range(6)]
        await trio.testing.wait_all_tasks_blocked()
        await trio.sleep(0.1)
        assert engine.begun == [b"P"] and service.encoder.joins == 3
        engine.gate.set()
        for n, handle in enumerate(handles):
            assert (await read(handle)).tokens == tuple(expected(showing(n, b"P")))
        assert engine.begun == [b"P"] and service.encoder.hits == 2


@pytest.mark.parametrize(("room", "encodes"), [(ROOM, 1), (ONE, 1), (ONE - 1, 3), (0, 3)])
async def test_rows_outlive_their_request_within_the_budget(room: int, encodes: int) -> None:
    async with serving(FakeEngine(mode=Mode.INLINE), image_bytes=room) as service:
        for n in range(3):
            await answer_of(service, showing(n, b"P"))
        encoder = service.encoder
        assert (encoder.images_encoded, encoder.hits) == (encodes, 3 - encodes)
        assert encoder.cache.bytes == (ONE if room >= ONE else 0)


async def test_a_picture_that_is_there_holds_nothing_up() -> None:
    engine = FakeEngine(mode=Mode.INLINE)
    async with serving(engine, image_bytes=ROOM, prefill_budget=None, prefix_bytes=0) as service:
        await answer_of(service, showing(1, b"P", tokens=3))
        before = service.loop.metrics.steps
        await answer_of(service, showing(2, b"P", tokens=3))
        assert service.loop.metrics.steps - before == 3, "the first step holds the whole prompt"
        assert "staging_wait_rows" not in path_of(service, "r2")


async def test_what_was_needed_longest_ago_makes_room() -> None:
    engine = Gated()
    engine.gate.set()
    async with serving(engine, image_bytes=2 * ONE) as service:
        for n, picture in enumerate([b"P", b"Q", b"P", b"R", b"P", b"Q"]):
            await answer_of(service, showing(n, picture))
        assert engine.begun == [b"P", b"Q", b"R", b"Q"], "R took the place of Q, not of P"
        assert service.encoder.hits == 2 and service.encoder.cache.stats.evicted == 2


async def test_twice_in_one_prompt() -> None:
    engine = Gated()
    engine.gate.set()
    asked = showing(1, b"P", b"Q", b"P", rows=30)
    async with serving(engine, image_bytes=0) as service:
        await answer_of(service, asked)
        assert engine.begun == [b"P", b"Q"]


async def test_the_first_who_asked_leaves_while_it_is_encoded() -> None:
    """It is gone at once, without waiting for the worker; the one that joined gets the rows."""
    engine = Gated()
    async with serving(engine) as service:
        first, second = service.submit(showing(1, b"P")), service.submit(showing(2, b"P"))
        await trio.sleep(0.1)
        assert engine.begun == [b"P"] and service.encoder.joins == 1
        first.cancel()
        assert (await read(first)).end.reason == "cancelled"
        await trio.testing.wait_all_tasks_blocked()
        assert [request.submission.id for request in service.requests.values()] == ["r2"]
        assert service.encoder.encoding == b"P", "the worker still has it"
        engine.gate.set()
        assert (await read(second)).tokens == tuple(expected(showing(2, b"P")))
        assert engine.begun == [b"P"]


async def test_a_picture_that_was_begun_is_kept_when_all_have_left() -> None:
    engine = Gated()
    async with serving(engine, image_bytes=ROOM) as service:
        handles = [service.submit(showing(n, b"P", b"Q", rows=30)) for n in range(2)]
        await trio.sleep(0.1)
        for handle in handles:
            handle.cancel()
        await settled(service)
        engine.gate.set()
        await trio.testing.wait_all_tasks_blocked()
        assert engine.begun == [b"P"], "Q was dead work"
        await answer_of(service, showing(3, b"P"))
        assert engine.begun == [b"P"] and service.encoder.hits == 1


async def test_order_is_that_of_first_asking_whoever_leaves() -> None:
    engine = Gated()
    async with serving(engine) as service:
        handles = []
        for n, pictures in enumerate([(b"A", b"B"), (b"C",), (b"B", b"C"), (b"D",)]):
            handles.append(service.submit(showing(n, *pictures, rows=30)))
        await trio.sleep(0.1)
        assert service.encoder.cache.queue == (b"B", b"C", b"D")
        handles[0].cancel()
        handles[1].cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert service.encoder.cache.queue == (b"B", b"C", b"D"), "the third one still needs B and C"
        engine.gate.set()
        for n in (2, 3):
            assert (await read(handles[n])).end.reason == "length"
        assert engine.begun == [b"A", b"B", b"C", b"D"]


async def test_nobody_gets_a_slot_before_all_who_came_together_have_begun() -> None:
    """Trio runs tasks in any order: one that began with a grant in its mailbox would ask ahead of others."""
    engine = Gated()
    async with serving(engine) as service:
        turn = service._wiring.turn
        for n in range(3):
            service.submit(showing(n, b"P"))
        assert turn.pending == 6, "each has asked for a slot, and its task has not begun"
        await trio.testing.wait_all_tasks_blocked()
        assert turn.pending == 0 and engine.begun == [b"P"]
        engine.gate.set()
        await settled(service)


async def test_a_failure_fails_those_who_wait_and_is_tried_again_for_later_ones() -> None:
    engine = Gated(num_slots=5)
    engine.fail_encode(b"P", "no memory")
    async with serving(engine, image_bytes=ROOM) as service:
        both = [
            service.submit(showing(1, b"P", b"X", rows=30)),
            service.submit(showing(2, b"Q", b"P", rows=30)),
        ]
        other = service.submit(showing(3, b"Q"))
        await trio.sleep(0.1)
        engine.gate.set()
        errors = [(await read(handle)).end.error for handle in both]
        assert [str(error) for error in errors] == ["no memory"] * 2
        assert all(isinstance(error, DeviceError) for error in errors) and errors[0] is not errors[1]
        assert (await read(other)).tokens == tuple(expected(showing(3, b"Q")))
        await settled(service)
        assert engine.begun == [b"P", b"Q"], "X was dead work"
        engine._failing_images.clear()
        await answer_of(service, showing(4, b"P"))
        assert engine.begun == [b"P", b"Q", b"P"]
        assert service.encoder.images_encoded == 3 and service.encoder.cache.stats.failed == 1


async def test_what_a_failed_request_had_queued_is_encoded_for_others() -> None:
    engine = Gated()
    engine.fail_encode(b"P")
    async with serving(engine) as service:
        bad, good = service.submit(showing(1, b"P", b"Q", rows=30)), service.submit(showing(2, b"Q"))
        await trio.sleep(0.1)
        engine.gate.set()
        assert (await read(bad)).end.reason == "error"
        assert (await read(good)).tokens == tuple(expected(showing(2, b"Q")))
        assert engine.begun == [b"P", b"Q"]


async def test_the_server_stops_while_a_dead_picture_is_encoded() -> None:
    engine = Gated()
    async with serving(engine) as service:
        handle = service.submit(showing(1, b"P"))
        await trio.sleep(0.1)
        handle.cancel()
        await settled(service)
        service.drain()
        await trio.testing.wait_all_tasks_blocked()
        assert service.encoder.machine.active("stopping") and service.state == "draining"
        engine.gate.set()
        await service.stopped()
    assert service.state == "stopped"


async def test_a_dropped_request_has_its_picture_encoded_again_if_it_is_gone() -> None:
    """It started from a cached prefix and never asked for its picture. Then it gives way, its prefix is gone when it
    comes back, and so are the picture's rows."""
    engine = FakeEngine(fake_capabilities(block_size=4, num_blocks=24), mode=Mode.INLINE)
    asked = showing(1, b"P", rows=20, tokens=40)
    old = ask(2, rows=10, tokens=84)  # in the end it takes the whole pool
    async with serving(engine, park_bytes=0, image_bytes=0) as service:
        await answer_of(service, attrs.evolve(asked, params=ask(1, tokens=2).params))
        assert service.encoder.images_encoded == 1
        first, second = service.submit(old), service.submit(asked)
        answers = [await read(first), await read(second)]
        assert second.usage.cached_tokens > 12, "the trap: it starts behind its picture"
        assert service.loop.metrics.drops >= 1, "the trap: it gives way"
        assert service.encoder.images_encoded == 2 and service.encoder.hits == 0
        assert [answer.tokens for answer in answers] == [tuple(expected(old)), tuple(expected(asked))]
        await settled(service)
        check_clean(service, engine)


async def test_one_line_for_each_encode(caplog: pytest.LogCaptureFixture) -> None:
    engine = FakeEngine(mode=Mode.INLINE)
    engine.fail_encode(b"Q")
    with caplog.at_level(logging.DEBUG, "luce.encoder"):
        async with serving(engine, image_bytes=ROOM) as service:
            for n, picture in enumerate([b"P", b"P", b"Q"]):
                await read(service.submit(showing(n, picture)))
                await settled(service)
            assert service.encoder.seconds_encoding > 0
    said = [record.getMessage() for record in caplog.records if record.name == "luce.encoder"]
    assert len(said) == 2
    assert said[0].startswith("a picture of request r0: 4 rows, ") and said[0].endswith(" ms")
    assert said[1].startswith("a picture of request r2: failed, ")


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("room", [0, 2 * ONE, ROOM])
@pytest.mark.parametrize("depth", [1, 2])
async def test_whoever_comes_and_goes_every_answer_is_right(seed: int, room: int, depth: int) -> None:
    """Forty requests about four pictures, some twice, one of them broken; pressure, cancels, parking, prefixes."""
    rng = random.Random(seed)
    engine = FakeEngine(fake_capabilities(block_size=4, num_blocks=40), mode=Mode.THREAD)
    engine.fail_encode(b"broken")
    ends: list[str] = []

    async def one(service: Service, n: int) -> None:
        await trio.sleep(rng.random() * 0.05)
        pictures = rng.choices([b"P", b"Q", b"R", b"S", b"broken"], [4, 4, 4, 4, 1], k=1 + rng.randrange(3))
        asked = showing(n % 7, *pictures, rows=10 + rng.randrange(30), tokens=4 + rng.randrange(40))
        asked = attrs.evolve(asked, id=f"r{n}")
        answer = await read(service.submit(asked), rng.randrange(9) if rng.random() < 0.4 else None)
        ends.append(answer.end.reason)
        assert answer.tokens == tuple(expected(asked))[: len(answer.tokens)]
        if answer.end.reason == "error":
            assert b"broken" in pictures and "injected" in str(answer.end.error)

    async with serving(
        engine, depth=depth, image_bytes=room, park_bytes=700, prefix_bytes=400, prefill_budget=7
    ) as service:
        async with trio.open_nursery() as nursery:
            for n in range(40):
                nursery.start_soon(one, service, n)
        await settled(service)
        check_clean(service, engine)
        encoder = service.encoder
        assert encoder.cache.bytes <= room
        assert {"length", "cancelled", "error"} == set(ends)
        if room == ROOM:
            assert encoder.cache.stats.encoded == 4
