"""Pictures in requests and in the batch (B04, B12, B38, B39, B42, B43)."""

from __future__ import annotations

import gc
import json
import tracemalloc
from typing import Any

import httpx
import pytest
import trio

from luce.engines.fake.engine import FakeEngine, Mode, fake_capabilities
from luce.engines.fake.times import Times
from luce.engines.load_model import load_model
from luce.engines.seam import PatchImage
from luce.http.openai.prepare import prepare_chat
from luce.http.options import HttpOptions
from tests.actors.harness import ask as submission
from tests.actors.harness import expected, read, read_all, settled
from tests.actors.harness import serving as fake_serving
from tests.faults.whole import CHAT, SETTINGS, alone, ask, live, opened, picture, same_part, turn, url
from tests.http.conftest import until
from tests.http.fake_model import live as fake_live
from tests.http.test_connections import request
from tests.vision.pictures import bmp, encode, noise

pytestmark = pytest.mark.trio


async def test_b04_pictures_that_differ_in_their_last_row_get_their_own_answers() -> None:
    """Two uncompressed files, equal but for their end."""
    first = noise(32, 48, seed=4)
    second = first.copy()
    second[-1] = 255 - second[-1]
    for write, kind in ((bmp, "bmp"), (lambda p: encode(p, compress_level=0), "png")):
        files = [write(pixels) for pixels in (first, second)]
        if kind == "png":
            same = next(i for i, (a, b) in enumerate(zip(*files, strict=True)) if a != b)
            assert same > len(files[0]) * 0.9, "the trap: the files are equal up to their end"
        bodies = [ask(url(data, kind), "What?", max_tokens=4) for data in files]
        references = await alone(bodies)
        assert references[0] != references[1], "the trap: the pictures have different answers"
        async with live() as server:
            assert [(await server.all([body]))[0] for body in [*bodies, bodies[0]]] == [
                *references,
                references[0],
            ]
            assert await server.all(bodies) == references


def two_turns(first: str, second: str) -> dict[str, Any]:
    messages = [
        turn("Look:", first),
        {"role": "assistant", "content": "I see."},
        turn("And then?"),
        {"role": "assistant", "content": "Go on."},
        turn(second, "What changed?"),
    ]
    return ask() | {"messages": messages}


@pytest.mark.parametrize("settings", SETTINGS)
async def test_b12_pictures_of_several_turns_are_taken_in_order(settings: dict[str, Any]) -> None:
    """Of different sizes, so that a wrong order would not fit its rows either."""
    a, b = picture(1), picture(2, 48, 32)
    same_size = picture(3)
    bodies = [two_turns(a, b), two_turns(b, a), two_turns(a, same_size), two_turns(same_size, a)]
    references = await alone(bodies)
    assert len({str(reference) for reference in references}) == 4, "the trap: order shows"
    async with live(**settings) as server:
        assert await server.all(bodies) == references


async def test_b12_each_picture_goes_to_its_own_turn() -> None:
    """What the body's turns hold, in their order, is what is submitted: a server that swaps them agrees with itself."""
    model = load_model(opened())
    try:
        a, b = encode(noise(32, 48, 1)), encode(noise(48, 32, 2))
        digests = [model.preparer.prepare_image(data, field="x").digest for data in (a, b)]
        for order in ((0, 1), (1, 0)):
            files = [url((a, b)[index]) for index in order]
            job = prepare_chat(json.dumps(two_turns(*files)).encode(), model, HttpOptions())
            assert [image.digest for image in job.submission.images] == [digests[index] for index in order]
            spans = job.submission.prompt.spans
            assert [span.image for span in spans] == [0, 1] and spans[0].start < spans[1].start
    finally:
        model.engine.shutdown()


async def test_b12_rows_stand_where_their_turns_do() -> None:
    """The picture's rows are at its own turn's pads, in the prompt that the template wrote."""
    model = load_model(opened())
    try:
        images = [
            model.preparer.prepare_image(encode(noise(h, w)), field="x") for h, w in ((32, 48), (64, 32))
        ]
        messages = [turn("a", picture(0)), {"role": "assistant", "content": "b"}, turn(picture(0), "c")]
        prompt = model.preparer.build(messages, images)
        assert [span.length for span in prompt.spans] == [6, 8] == [image.num_tokens for image in images]
        ids = prompt.token_ids.tolist()
        special = model.tokenizer.special_ids
        for span in prompt.spans:
            assert ids[span.start - 1] == special["<|vision_start|>"]
            assert set(ids[span.start : span.start + span.length]) == {special["<|image_pad|>"]}
            assert ids[span.start + span.length] == special["<|vision_end|>"]
        turns = [place for place, token in enumerate(ids) if token == special["<|im_start|>"]]
        assert turns[0] < prompt.spans[0].start < turns[1] < turns[2] < prompt.spans[1].start < turns[3]
    finally:
        model.engine.shutdown()


async def test_b38_nothing_is_encoded_before_a_slot_is_held() -> None:
    """While the pool is busy for 60 steps the waiting request's picture is not touched, then encoded once."""
    engine = FakeEngine(fake_capabilities(num_slots=1), mode=Mode.THREAD, times=Times(step=0.001))
    async with fake_serving(engine) as service:
        busy, waiting = service.submit(submission(0, tokens=60)), service.submit(submission(1, images=2))
        calls: list[tuple[int, int]] = []
        for _ in range(50):
            await busy.next()
            calls.append((len(service.loop.waiting), service.encoder.images_encoded))
        assert set(calls) == {(1, 0)}, "the trap: it waits all the time"
        assert (await read(busy)).end.reason == "length"
        assert (await read(waiting)).tokens == tuple(expected(submission(1, images=2)))
        assert service.encoder.images_encoded == 2
        assert service.loop.metrics.steps > 60


async def test_b38_a_failing_encode_frees_the_slot() -> None:
    engine = FakeEngine(fake_capabilities(num_slots=1), mode=Mode.THREAD)
    bad = submission(1, images=2)
    engine.fail_encode(bad.images[0].digest)
    async with fake_serving(engine) as service:
        answers = await read_all(service, [bad, submission(2, images=1)])
        assert [answer.end.reason for answer in answers] == ["error", "length"]
        await settled(service)
        granted = [record.id for record in service.events if record.event == "slot.granted"]
        assert granted == ["r1", "r2"], "the trap: it had the slot when it failed"
        assert not engine.open_slots
        assert service.encoder.images_encoded == 2, "its second picture never starts"


async def test_b39_more_picture_requests_than_slots_wait() -> None:
    """All answered, none 400; what waits holds its patches and nothing of its body."""
    engine = FakeEngine(fake_capabilities(num_slots=2), times=Times(step=0.01))
    size = 300_000
    bodies = [
        {"messages": [turn(url(bytes([index]) * size), f"{index}")], "max_tokens": 12} for index in range(8)
    ]
    responses: list[httpx.Response] = []
    async with fake_live(engine) as server:

        async def one(body: dict[str, Any]) -> None:
            responses.append(await client.post(CHAT, json=body))

        async with (
            httpx.AsyncClient(base_url=server.server.url, timeout=20, verify=False) as client,
            trio.open_nursery() as nursery,
        ):
            for body in bodies:
                nursery.start_soon(one, body)
            await until(lambda: len(server.service.loop.waiting) == 6, 5)  # the trap: six of them wait
            for request in server.service.loop.waiting.values():
                assert all(rows is None for rows in request.spec.image_rows)
    assert [response.status_code for response in responses] == [200] * 8


async def test_b39_waiting_requests_keep_no_body() -> None:
    engine = FakeEngine(fake_capabilities(num_slots=1), mode=Mode.MANUAL)
    size = 1_000_000
    async with fake_live(engine) as server, trio.open_nursery() as nursery:
        connections = []

        async def waiting(count: int) -> None:
            while len(server.service.requests) < count:
                body = {"messages": [turn(url(bytes([len(connections)]) * size), "Hi")], "max_tokens": 5}
                connection = await server.server.connect()
                connections.append(connection)
                before = len(server.service.requests)
                await connection.send_all(request(body))
                await until(lambda before=before: len(server.service.requests) > before)

        await waiting(2)
        gc.collect()
        tracemalloc.start()
        try:
            await waiting(8)
            gc.collect()
            grown, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak > size, "the trap: the bodies did pass through here"
        assert grown < size, f"{grown} bytes for six bodies of {size * 4 // 3}"
        for connection in connections:
            await connection.aclose()
        nursery.start_soon(engine.drive)
        await until(lambda: not server.service.requests)
        nursery.cancel_scope.cancel()


async def test_b42_the_next_user_waits_for_one_encode_only() -> None:
    """Three of four are cancelled before their turn; the fifth is encoded right after the one in progress."""
    engine = FakeEngine(fake_capabilities(num_slots=5), mode=Mode.THREAD)
    encode_now = engine.encode
    calls: list[bytes] = []
    gates = [trio.Event() for _ in range(5)]
    started = [trio.Event() for _ in range(5)]

    def slow(image: PatchImage) -> Any:
        number = len(calls)
        calls.append(image.digest)
        trio.from_thread.run_sync(started[number].set)
        trio.from_thread.run(gates[number].wait)
        return encode_now(image)

    engine.encode = slow  # type: ignore[method-assign]
    async with fake_serving(engine) as service:
        handles = [service.submit(submission(n, images=1)) for n in range(4)]
        with trio.fail_after(5):
            await started[0].wait()
            await until(lambda: len(service.encoder.cache.queue) == 3)  # the trap: three encodes are queued
            running = int(calls[0].split(b"/")[0])
            for n, handle in enumerate(handles):
                if n != running:
                    handle.cancel()
            fifth = service.submit(submission(4, images=1))
            gates[0].set()
            await started[1].wait()
            assert calls[1] == b"4/0"
            gates[1].set()
            assert (await read(fifth)).tokens == tuple(expected(submission(4, images=1)))
        assert len(calls) == 2


@pytest.mark.parametrize("error", [RuntimeError("boom"), MemoryError(), ZeroDivisionError(), KeyError("x")])
@pytest.mark.parametrize("depth", [1, 2])
async def test_b43_any_exception_of_the_encoder_fails_its_request_alone(error: Exception, depth: int) -> None:
    """A bug in the tower, not an error that luce raised itself: three answers are right, the server lives."""
    engine = FakeEngine(fake_capabilities(num_slots=4), mode=Mode.THREAD)
    encode_now = engine.encode

    def broken(image: PatchImage) -> Any:
        if image.digest == b"2/0":
            raise error
        return encode_now(image)

    engine.encode = broken  # type: ignore[method-assign]
    four = [submission(n, images=1, tokens=20) for n in range(4)]
    async with fake_serving(engine, depth=depth) as service:
        answers = await read_all(service, four)
        for n, answer in enumerate(answers):
            if n == 2:
                assert answer.end.reason == "error" and answer.end.error is not None
                assert str(answer.end.error).startswith("encoding image 0 failed")
            else:
                assert answer.tokens == tuple(expected(four[n]))
        await settled(service)
        pool = service.loop.memory.pool
        assert not engine.open_slots and pool.free + pool.cached == pool.num_blocks
        (again,) = await read_all(service, [submission(7, images=1)])
        assert again.tokens == tuple(expected(submission(7, images=1)))


async def test_b43_over_http_it_is_one_500(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real tower, broken for one picture of four requests at once."""
    bodies = [ask(picture(seed), "What?") for seed in range(4)]
    references = await alone(bodies)
    model = load_model(opened())
    marked = model.preparer.prepare_image(encode(noise(32, 48, 2)), field="x").digest
    tower = model.engine.encode

    def broken(image: PatchImage) -> Any:
        if image.digest == marked:
            raise FloatingPointError("a bug")
        return tower(image)

    monkeypatch.setattr(model.engine, "encode", broken)
    responses: dict[int, httpx.Response] = {}
    async with live(model=model) as server:

        async def one(index: int) -> None:
            responses[index] = await server.post(bodies[index])

        async with trio.open_nursery() as nursery:
            for index in range(4):
                nursery.start_soon(one, index)
        assert [responses[index].status_code for index in range(4)] == [200, 200, 500, 200]
        assert responses[2].json()["error"]["type"] == "server_error"
        assert [same_part(responses[index].json()) for index in (0, 1, 3)] == [
            references[index] for index in (0, 1, 3)
        ]
        assert await server.all([bodies[3]]) == [references[3]]
