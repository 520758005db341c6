"""Pictures on their way through encoder, queue and slots, on both engines (B38, B39, B42, B43), and every way out of a
slot (B45)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import trio

from luce.actors.encoder import Encode
from luce.actors.submission import Handle
from luce.engines.fake.engine import FakeEngine
from luce.engines.seam import PatchImage
from luce.errors import DeviceError
from luce.trace.events import EventRecord
from tests.actors.harness import Answer, read, settled
from tests.faults.whole import ENGINES, Live, alone, alone_at_service, ask, live, picture, text_of
from tests.http.conftest import until

pytestmark = [pytest.mark.trio, pytest.mark.parametrize("engine", ENGINES)]


class Broken:
    """Encodes as ever, but for pictures that are marked: then it raises, or gives rows that are not finite."""

    def __init__(self) -> None:
        self.marked: dict[bytes, Exception | None] = {}
        self.calls = 0

    def __call__(self, encode: Encode) -> Encode:
        async def run(image: PatchImage) -> Any:
            self.calls += 1
            if image.digest not in self.marked:
                return await encode(image)
            error = self.marked[image.digest]
            if error is not None:
                raise error
            return np.full_like(await encode(image), np.nan)

        return run


def when(server: Live, name: str, event: str, then: Callable[[], None]) -> None:
    """Do something right when a request has handled the first of these events."""

    def look(record: EventRecord) -> None:
        if (record.machine, record.id, record.event) == ("request", name, event):
            unlisten()
            then()

    unlisten = server.service.events.listen(look)


def spoil(server: Live, broken: Broken, name: str, image: PatchImage) -> None:
    """A row of this request is not finite, the first after its picture; the fake engine knows no NaN, but says so."""
    engine = server.model.engine
    if not isinstance(engine, FakeEngine):
        broken.marked[image.digest] = None
        return

    def fail() -> None:
        (request,) = (one for one in server.service.requests.values() if one.submission.id == name)
        if request.slot is not None:
            engine.fail_row(request.slot)

    when(server, name, "image.ready", fail)


async def test_b38_nothing_is_encoded_before_a_slot_is_held(engine: str) -> None:
    """While the only slot is busy for 50 tokens the waiting request's pictures are not touched, then encoded once."""
    bodies = [ask("Go on", max_tokens=60), ask(picture(1), picture(2), "What?")]
    references = [text_of(reference) for reference in await alone(bodies, engine)]
    async with live(engine=engine, slots=1) as server:
        busy, waiting = (server.submit(body, f"r{n}") for n, body in enumerate(bodies))
        seen: Counter[tuple[int, int]] = Counter()
        text = ""
        for _ in range(50):
            text += (await busy.next()).text  # type: ignore[union-attr]
            seen[len(server.service.loop.waiting), server.service.encoder.images_encoded] += 1
        assert set(seen) == {(1, 0)}, "the trap: it waits all the time"
        text += (await read(busy)).text
        assert [text, (await read(waiting)).text] == references
        assert server.service.encoder.images_encoded == 2


async def test_b38_a_failing_encode_frees_the_slot(engine: str) -> None:
    bodies = [ask(picture(1), picture(2), "What?"), ask(picture(3), "What?")]
    broken = Broken()
    async with live(engine=engine, slots=1, encode=broken) as server:
        bad = server.submission(bodies[0], "bad")
        broken.marked[bad.images[0].digest] = DeviceError("broken")
        handles = [server.service.submit(bad), server.submit(bodies[1], "good")]
        answers = [await read(handle) for handle in handles]
        assert [answer.end.reason for answer in answers] == ["error", "length"]
        await settled(server.service)
        granted = [record.id for record in server.service.events if record.event == "slot.granted"]
        assert granted == ["bad", "good"], "the trap: it had the slot when it failed"
        assert broken.calls == 2, "its second picture never starts"
        assert text_of((await alone(bodies[1:], engine))[0]) == answers[1].text


async def test_b39_picture_requests_beyond_the_slots_wait(engine: str) -> None:
    """Eight over HTTP for two slots: all answered, none of them 400."""
    bodies = [ask(picture(seed), "What?", max_tokens=8) for seed in range(8)]
    references = await alone(bodies, engine)
    assert len({str(reference["choices"]) for reference in references}) == 8
    async with live(engine=engine, slots=2) as server:
        loop, most = server.service.loop, 0

        def look(_: object) -> None:
            nonlocal most
            most = max(most, len(loop.waiting))
            assert not any(
                rows is not None for request in loop.waiting.values() for rows in request.spec.image_rows
            )

        server.service.events.listen(look)
        assert await server.all(bodies) == references
    assert most >= 4, "the trap: they do wait"


async def test_b42_the_next_user_waits_for_one_encode_only(engine: str) -> None:
    """Three of four are cancelled before their turn; the fifth is encoded right after the one in progress."""
    gates, started = [trio.Event() for _ in range(5)], [trio.Event() for _ in range(5)]
    calls: list[bytes] = []

    def gated(encode: Encode) -> Encode:
        async def run(image: PatchImage) -> Any:
            number = len(calls)
            calls.append(image.digest)
            started[number].set()
            await gates[number].wait()
            return await encode(image)

        return run

    async with live(engine=engine, slots=5, encode=gated) as server:
        asked = [server.submission(ask(picture(seed), "What?"), f"r{seed}") for seed in range(5)]
        handles = [server.service.submit(each) for each in asked[:4]]
        with trio.fail_after(10):
            await started[0].wait()
            await until(lambda: len(server.service.encoder.cache.queue) == 3)  # the trap: three are queued
            for each, handle in zip(asked[:4], handles, strict=True):
                if each.images[0].digest != calls[0]:
                    handle.cancel()
            fifth = server.service.submit(asked[4])
            gates[0].set()
            await started[1].wait()
            assert calls[1] == asked[4].images[0].digest
            gates[1].set()
            assert (await read(fifth)).tokens == (await alone_at_service(asked[4], engine)).tokens
            assert Counter([(await read(handle)).end.reason for handle in handles]) == {
                "length": 1,
                "cancelled": 3,
            }
        assert len(calls) == 2


ERRORS = [RuntimeError("boom"), MemoryError(), ZeroDivisionError(), KeyError("x"), None]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("depth", [1, 2])
async def test_b43_a_broken_picture_fails_its_request_alone(
    engine: str, error: Exception | None, depth: int
) -> None:
    """A bug in the tower, or rows of it that are not finite: three answers are right, the server lives."""
    bodies = [ask(picture(seed), "What?", max_tokens=20) for seed in range(4)]
    references = await alone(bodies, engine)
    broken = Broken()
    async with live(engine=engine, encode=broken, depth=depth, image_bytes=0) as server:
        (image,) = server.submission(bodies[2]).images
        if error is None:
            spoil(server, broken, "r2", image)
        else:
            broken.marked[image.digest] = error
        answers: dict[int, Answer] = {}

        async def one(n: int, handle: Handle) -> None:
            answers[n] = await read(handle)

        async with trio.open_nursery() as nursery:
            for n, body in enumerate(bodies):
                nursery.start_soon(one, n, server.submit(body, f"r{n}"))
        assert answers[2].end.reason == "error" and answers[2].end.error is not None
        if error is not None:
            assert str(answers[2].end.error).startswith("encoding image 0 failed")
        for n in (0, 1, 3):
            assert answers[n].text == text_of(references[n])
        broken.marked.clear()
        assert await server.all(bodies) == references, "asked again, it works"


WAYS = ("stop", "length", "cancel", "encode fails", "row fails", "cancel prefill")


@pytest.mark.parametrize("depth", [1, 2])
async def test_b45_every_way_out_gives_the_slot_back(engine: str, depth: int) -> None:
    """Eight rounds of six requests over two slots, ended in every way there is; after each both slots are free."""
    broken, ended = Broken(), Counter[str]()
    free = ask("Say what you like", max_tokens=12)
    (reference,) = await alone([free], engine)
    text = text_of(reference)
    stop = next(text[i] for i in range(3, len(text)) if text[i] not in text[:i] and text[i] != "�")
    async with live(engine=engine, slots=2, encode=broken, depth=depth, prefill_budget=8) as server:
        service = server.service
        assert server.model.engine.capabilities.num_slots == 2

        async def one(way: str, seed: int) -> None:
            body = free | ({"stop": stop} if way == "stop" else {})
            if "fails" in way:
                body = ask(picture(seed), "What?")
            asked = server.submission(body, f"{way} {seed}")
            if way == "encode fails":
                broken.marked[asked.images[0].digest] = RuntimeError("boom")
            elif way == "row fails":
                spoil(server, broken, asked.id, asked.images[0])
            handle = service.submit(asked)
            if way == "cancel prefill":
                when(server, asked.id, "slot.granted", handle.cancel)
            answer = await read(handle, until=3 if way == "cancel" else None)
            reason = "cancelled" if "cancel" in way else "error" if "fails" in way else way
            ended[way] += answer.end.reason == reason
            if way == "length":
                assert answer.text == text
            elif way == "stop":
                assert answer.text == text.partition(stop)[0]

        for round_number in range(8):
            async with trio.open_nursery() as nursery:
                for n, way in enumerate(WAYS):
                    nursery.start_soon(one, way, 10 * round_number + n)
            await settled(service)
            memory = service.loop.memory
            assert len(memory.free_slots) == 2 and not service.loop.running
            memory.check_integrity(())
            assert memory.pool.free + memory.pool.cached == memory.pool.num_blocks
    assert all(ended[way] == 8 for way in WAYS), f"the trap: all ways were taken, {ended}"
