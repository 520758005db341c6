"""Pictures in requests and in the batch (B04, B12, B39, B43); test_encodes has more of the last two."""

from __future__ import annotations

import gc
import json
import tracemalloc
from typing import Any

import httpx
import pytest
import trio

from luce.engines.fake.engine import FakeEngine, Mode, fake_capabilities
from luce.engines.load_model import load_model
from luce.engines.seam import PatchImage
from luce.http.openai.prepare import prepare_chat
from luce.http.options import HttpOptions
from tests.faults.whole import SETTINGS, alone, ask, live, opened, picture, same_part, turn, url
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
            job = prepare_chat(json.dumps(two_turns(*files)).encode(), model, HttpOptions()).job
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
