"""Time limits as clients ask for them and operators set them: 504, or an error event in a stream."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio

from luce.engines.fake.engine import FakeEngine, fake_capabilities
from luce.engines.fake.times import Times
from tests.http.conftest import serving, until
from tests.http.fake_model import live
from tests.http.test_service import body

pytestmark = pytest.mark.trio

PATH = "/v1/chat/completions"
LONG = {"max_tokens": 400}
"""Takes twenty seconds; no test waits for that."""


def engine() -> FakeEngine:
    return FakeEngine(fake_capabilities(num_slots=1), times=Times(step=0.05))


async def test_a_whole_answer_is_504_and_the_slot_is_free(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "luce.requests")
    async with live(engine()) as server, server.server.http() as client:
        response = await client.post(PATH, json=body(**LONG, timeout=0.4))
        assert response.status_code == 504
        error = response.json()["error"]
        assert error["type"] == "server_error" and error["code"] == "timeout"
        assert "not complete 0.4 s after its request arrived (timeout): " in error["message"]
        assert " of at most 400 tokens were generated" in error["message"]
        assert response.headers["x-should-retry"] == "false" and "retry-after" not in response.headers
        answer = await client.post(PATH, json=body(max_tokens=2, timeout=60))
        assert answer.status_code == 200 and answer.json()["usage"]["completion_tokens"] == 2
    [line] = [vars(record) for record in caplog.records if vars(record).get("status") == 504]
    assert line["outcome"] == "failed" and "completion_tokens" in line
    assert not [record for record in caplog.records if record.levelno > logging.INFO], "a limit is no fault"


async def test_a_stream_ends_with_an_error_event() -> None:
    async with live(engine()) as server, server.server.http() as client:
        asked = body(**LONG, timeout=0.4, stream=True)
        async with client.stream("POST", PATH, json=asked) as response:
            assert response.status_code == 200
            events = [line async for line in response.aiter_lines() if line.startswith("data: ")]
    assert len(events) > 2, "what there is of the answer comes first"
    last: dict[str, Any] = json.loads(events[-1].removeprefix("data: "))
    assert last["error"]["code"] == "timeout" and "0.4 s" in last["error"]["message"]


async def test_the_server_s_limit_bounds_what_a_request_may_ask_for() -> None:
    async with live(engine(), request_timeout=0.4) as server, server.server.http() as client:
        for fields in ({}, {"timeout": None}, {"timeout": 60}):
            response = await client.post(PATH, json=body(**LONG, **fields))
            assert response.status_code == 504
            assert "0.4 s after its request arrived (--request-timeout)" in response.text


async def test_one_that_waits_for_a_slot() -> None:
    async with live(engine()) as server, server.server.http() as client:
        async with client.stream("POST", PATH, json=body("runs", **LONG, stream=True)):
            response = await client.post(PATH, json=body("waits", timeout=0.2))
            assert response.status_code == 504
            assert response.json()["error"]["message"].endswith("it still waited for a free slot")
        await until(lambda: not server.service.requests)


@pytest.mark.parametrize(
    "fields", [{"timeout": 0.2}, {"timeout": 0.2, "stream": True}, {"timeout": 0.2, "n": 2}]
)
async def test_one_whose_body_arrives_too_late(fields: dict[str, Any]) -> None:
    async with live(engine()) as server, server.server.http() as client:

        async def slowly() -> AsyncIterator[bytes]:
            whole = json.dumps(body(**fields)).encode()
            yield whole[:-1]
            await trio.sleep(0.4)
            yield whole[-1:]

        headers = {"content-type": "application/json"}
        response = await client.post(PATH, content=slowly(), headers=headers)
        assert response.status_code == 504
        error = response.json()["error"]
        assert error["code"] == "timeout"
        assert error["message"].endswith(
            "(timeout): until then its body was still arriving or being prepared"
        )


@pytest.mark.parametrize("wrong", [0, -1, 86_401, 1e300, -0.0, "2", True, [2]])
async def test_what_is_no_limit(wrong: object) -> None:
    async with serving() as server, server.http() as client:
        response = await client.post(PATH, json=body(timeout=wrong))
        assert response.status_code == 400, response.text
        assert response.json()["error"]["param"] == "timeout"
