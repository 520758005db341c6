"""The HTTP side on real actors over the fake engine: what clients do, and what it does to slots."""

from __future__ import annotations

import gc
from typing import Any

import httpx
import psutil
import pytest
import trio

from luce.engines.fake.engine import FakeEngine, fake_capabilities
from luce.engines.fake.times import Times
from luce.http.options import HttpOptions
from tests.heap import trim
from tests.http.conftest import data_url, until
from tests.http.fake_model import Live, live
from tests.http.test_connections import request

pytestmark = pytest.mark.trio


def body(text: str = "Hi", *pictures: str, **fields: Any) -> dict[str, Any]:
    content: Any = text
    if pictures:
        content = [{"type": "image_url", "image_url": {"url": url}} for url in pictures]
        content.append({"type": "text", "text": text})
    return {"messages": [{"role": "user", "content": content}], "max_tokens": 20} | fields


async def whole(client: httpx.AsyncClient, asked: dict[str, Any]) -> dict[str, Any]:
    response = await client.post("/v1/chat/completions", json=asked)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


async def streamed(live: Live, asked: dict[str, Any]) -> tuple[str, str | None]:
    async with live.server.openai() as client:
        fields = {key: asked[key] for key in ("messages", "max_tokens", "stop", "logprobs") if key in asked}
        stream = await client.chat.completions.create(model="fake", stream=True, **fields)  # type: ignore[call-overload]
        text, reason = "", None
        async for chunk in stream:
            text += chunk.choices[0].delta.content or ""
            reason = chunk.choices[0].finish_reason
    return text, reason


async def test_many_at_once_answer_as_alone() -> None:
    asked = [body(f"question {index}", *[data_url(4 + index, 4)] * (index % 3)) for index in range(12)]
    async with live(FakeEngine()) as server, server.server.http() as client:
        alone = [(await whole(client, one))["choices"][0]["message"]["content"] for one in asked]
    assert len(set(alone)) == len(asked)
    together: dict[int, str] = {}

    async def run(client: httpx.AsyncClient, index: int) -> None:
        together[index] = (await whole(client, asked[index]))["choices"][0]["message"]["content"]

    async with live(FakeEngine(fake_capabilities(num_slots=3))) as server, server.server.http() as client:  # noqa: SIM117
        async with trio.open_nursery() as nursery:
            for index in range(len(asked)):
                nursery.start_soon(run, client, index)
    assert [together[index] for index in range(len(asked))] == alone


async def test_more_image_requests_than_slots_all_wait_and_answer() -> None:
    statuses: list[int] = []

    async def run(client: httpx.AsyncClient, index: int) -> None:
        response = await client.post("/v1/chat/completions", json=body(f"{index}", data_url(5 + index, 4)))
        statuses.append(response.status_code)

    async with live(FakeEngine(fake_capabilities(num_slots=2))) as server, server.server.http() as client:  # noqa: SIM117
        async with trio.open_nursery() as nursery:
            for index in range(8):
                nursery.start_soon(run, client, index)
    assert statuses == [200] * 8


async def test_full_queue_is_503() -> None:
    engine = FakeEngine(fake_capabilities(num_slots=1), times=Times(step=0.005))
    async with (
        live(engine, max_queued=1) as server,
        server.server.http() as client,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(whole, client, body("runs", max_tokens=300))
        await until(lambda: engine.open_slots)
        nursery.start_soon(whole, client, body("waits", max_tokens=300))
        await until(lambda: len(server.service.loop.waiting) == 1)
        response = await client.post("/v1/chat/completions", json=body("one more"))
        assert response.status_code == 503
        assert response.headers["retry-after"]
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("length", [1, 2, 3, 7, 15])
@pytest.mark.parametrize("include", [False, True])
async def test_stop_strings_say_the_same_streamed_and_whole(length: int, include: bool) -> None:
    async with live(FakeEngine()) as server, server.server.http() as client:
        full = (await whole(client, body(max_tokens=60)))["choices"][0]["message"]["content"]
        assert len(full) >= 40
        for start in (3, 11, 20):
            stop = full[start : start + length]
            place = full.index(stop)
            asked = body(max_tokens=60, stop=["never", stop], include_stop_str_in_output=include)
            answer = (await whole(client, asked))["choices"][0]
            assert answer["message"]["content"] == full[: place + (len(stop) if include else 0)]
            assert answer["finish_reason"] == "stop"
            if not include:
                assert await streamed(server, asked) == (full[:place], "stop")


@pytest.mark.parametrize("when", ["queued", "before the first token", "streaming", "whole"])
async def test_client_that_leaves_frees_its_slot(when: str) -> None:
    engine = FakeEngine(fake_capabilities(num_slots=1, max_context=4096), times=Times(step=0.002))
    async with live(engine) as server:
        service = server.service
        if when == "queued":
            blocker = await server.server.connect()
            await blocker.send_all(request(body("blocker", max_tokens=3000, stream=True)))
            await until(lambda: engine.open_slots)
        connection = await server.server.connect()
        await connection.send_all(request(body(max_tokens=3000, stream=when != "whole")))
        count = 2 if when == "queued" else 1
        await until(lambda: len(service.requests) == count)
        if when == "streaming":
            data = b""
            while data.count(b"data: ") < 3:
                data += await connection.receive_some()
        elif when != "queued":
            await until(lambda: engine.open_slots)
        await connection.aclose()
        await until(lambda: len(service.requests) == count - 1, 1)
        if when == "queued":
            await blocker.aclose()
        await until(lambda: not engine.open_slots, 1)
        pool = service.loop.memory.pool
        assert pool.free + pool.cached == pool.num_blocks


@pytest.mark.slow
async def test_leaving_clients_do_not_grow_memory() -> None:
    engine = FakeEngine(fake_capabilities(max_context=4096), times=Times(step=0.0005))
    process = psutil.Process()

    async def come_and_go(server: Live, index: int) -> None:
        async with await server.server.connect() as connection:
            await connection.send_all(request(body(f"{index}", max_tokens=4000, stream=index % 2 == 0)))
            await trio.sleep(0.002 * (index % 8))

    async def many(server: Live, count: int) -> tuple[int, int]:
        async with trio.open_nursery() as nursery:
            for index in range(count):
                nursery.start_soon(come_and_go, server, index)
                await trio.sleep(0.002)
        await until(lambda: not server.service.requests, 5)
        gc.collect()
        trim()
        return process.num_fds(), process.memory_info().rss

    async with live(engine) as server:
        await many(server, 300)
        fds, rss = await many(server, 100)
        _, rss_later = await many(server, 500)
        await until(lambda: process.num_fds() <= fds)  # closing takes its client a moment
    assert rss_later - rss < 16 << 20


async def test_silent_prefill_is_commented() -> None:
    engine = FakeEngine(times=Times(step=0.3))
    async with (
        live(engine, HttpOptions(keep_alive=0.1)) as server,
        await server.server.connect() as connection,
    ):
        await connection.send_all(request(body(max_tokens=2, stream=True), headers="Connection: close\r\n"))
        data = b""
        async for piece in connection:
            data += piece
    assert b": keep-alive" in data
    assert b"[DONE]" in data


async def test_draining_refuses_new_work_and_finishes_old() -> None:
    engine = FakeEngine(times=Times(step=0.01))
    async with live(engine) as server, server.server.http() as client, trio.open_nursery() as nursery:
        answers: list[tuple[str, str | None]] = []

        async def run() -> None:
            answers.append(await streamed(server, body(max_tokens=40)))

        nursery.start_soon(run)
        await until(lambda: engine.open_slots)
        server.service.drain()
        response = await client.post("/v1/chat/completions", json=body())
        assert response.status_code == 503
        assert response.headers["retry-after"]
        assert (await client.get("/ready")).status_code == 503
        assert (await client.get("/health")).status_code == 200
    assert answers[0][1] == "length"


async def test_drain_limit_ends_streams_with_an_error_event() -> None:
    engine = FakeEngine(fake_capabilities(max_context=4096), times=Times(step=0.01))
    async with live(engine, drain_timeout=0.2) as server, await server.server.connect() as connection:
        await connection.send_all(
            request(body(max_tokens=4000, stream=True), headers="Connection: close\r\n")
        )
        await until(lambda: engine.open_slots)
        server.service.drain()
        data = b""
        with trio.fail_after(3):
            async for piece in connection:
                data += piece
    assert b'"the server is shutting down"' in data
    assert b"[DONE]" not in data


async def test_row_that_fails_is_one_error() -> None:
    engine = FakeEngine(times=Times(step=0.005))
    async with live(engine) as server, server.server.http() as client:
        results: dict[str, httpx.Response] = {}

        async def run(name: str) -> None:
            results[name] = await client.post("/v1/chat/completions", json=body(name, max_tokens=40))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(run, "first")
            await until(lambda: engine.open_slots)
            (slot,) = engine.open_slots
            nursery.start_soon(run, "second")
            await until(lambda: len(engine.open_slots) == 2)
            engine.fail_row(slot)
        assert results["first"].status_code == 500
        assert results["first"].json()["error"]["type"] == "server_error"
        assert results["second"].status_code == 200
