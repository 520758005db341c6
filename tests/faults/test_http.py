"""Clients that leave, half characters in bodies, and the edge of the context (B133, B136, B137)."""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

import pytest
import trio

from tests.faults.whole import ENGINES, alone, ask, live, picture
from tests.http.conftest import until
from tests.http.test_connections import request

pytestmark = pytest.mark.trio


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("leave", ["close", "reset"])
async def test_b133_whoever_leaves_frees_slot_and_blocks(engine: str, depth: int, leave: str) -> None:
    """After the first chunk, before it, in the queue, and on a whole answer; twice each."""
    async with live(engine=engine, slots=1, context=4096, depth=depth) as server:
        service = server.service
        body = ask("Hi", max_tokens=4000, logprobs=None, top_logprobs=None)
        for when in ("streaming", "before", "whole", "queued") * 2:
            blocker = await _connect(server, body) if when == "queued" else None
            if blocker is not None:
                await until(lambda: service.loop.running)
            connection = await _connect(server, body | {"stream": when != "whole"})
            await until(lambda count=1 + (blocker is not None): len(service.requests) == count)
            request_left = service.requests[max(service.requests)]
            if when == "streaming":
                data = b""
                while b'"content":"' not in data.replace(b'"content":""', b""):
                    data += await connection.receive_some()
            elif when != "queued":
                await until(lambda: service.loop.running)
            if leave == "reset":
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            await connection.aclose()
            await until(lambda order=request_left.order: order not in service.requests, 3)
            assert request_left.num_generated < 4000, "the trap: it was far from its end"
            if blocker is not None:
                await blocker.aclose()
            await until(lambda: not service.requests, 3)
            pool = service.loop.memory.pool
            assert not service.loop.running and pool.free + pool.cached == pool.num_blocks
            steps = service.loop.metrics.steps
            await trio.sleep(0.05)
            assert service.loop.metrics.steps == steps, "it goes on for nobody"
        short = ask("Hi", max_tokens=3)
        assert await server.all([short]) == await alone([short], engine)


async def _connect(server: Any, body: dict[str, Any]) -> trio.SocketStream:
    connection: trio.SocketStream = await server.server.connect()
    await connection.send_all(request(body))
    return connection


HALF = "\\ud83d"
PLACES = {
    "content": '{"role": "user", "content": "%s"}',
    "text part": '{"role": "user", "content": [{"type": "text", "text": "%s"}]}',
    "type of a part": '{"role": "user", "content": [{"type": "%s", "text": "x"}]}',
    "image url": '{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:%s"}}]}',
    "detail": '{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x", "detail": "%s"}}]}',
    "role": '{"role": "%s", "content": "x"}',
    "name": '{"role": "user", "content": "x", "name": "%s"}',
    "key": '{"role": "user", "content": "x", "%s": 1}',
    "reasoning": '{"role": "assistant", "content": "x", "reasoning": "%s"}',
    "call id": '{"role": "assistant", "tool_calls": [{"id": "%s", "function": {"name": "f", "arguments": ""}}]}',
    "call name": '{"role": "assistant", "tool_calls": [{"function": {"name": "%s", "arguments": ""}}]}',
    "arguments": '{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {"a": "%s"}}}]}',
    "tool call id": '{"role": "tool", "content": "x", "tool_call_id": "%s"}',
}
FIELDS = {
    "stop": '"stop": "%s"',
    "stops": '"stop": ["a", "%s"]',
    "model": '"model": "%s"',
    "tool name": '"tools": [{"type": "function", "function": {"name": "%s"}}]',
    "tool description": '"tools": [{"type": "function", "function": {"name": "f", "description": "%s"}}]',
    "schema": '"tools": [{"type": "function", "function": {"name": "f", "parameters": {"enum": ["%s"]}}}]',
    "schema key": '"tools": [{"type": "function", "function": {"name": "f", "parameters": {"%s": 1}}}]',
    "response format": '"response_format": {"type": "%s"}',
    "template value": '"chat_template_kwargs": {"x": "%s"}',
    "template key": '"chat_template_kwargs": {"%s": 1}',
    "bias": '"logit_bias": {"%s": 1}',
    "user": '"user": "%s"',
    "metadata": '"metadata": {"a": ["%s"]}',
    "unknown": '"%s": 1',
}


def bodies_with(text: str) -> dict[str, bytes]:
    user = '{"role": "user", "content": "x"}'
    found = {
        name: f'{{"max_tokens": 1, "messages": [{user}, {form % text}]}}' for name, form in PLACES.items()
    }
    found |= {
        name: f'{{"max_tokens": 1, "messages": [{user}], {form % text}}}' for name, form in FIELDS.items()
    }
    return {name: body.encode() for name, body in found.items()}


async def test_b136_half_a_surrogate_pair_is_400_in_every_field() -> None:
    async with live() as server:
        for escape in (HALF, "\\udc00", "a\\ud800b", "\\ude00\\ud83d"):
            for name, body in bodies_with(escape).items():
                for data in (body, body[:-1] + b', "stream": true}'):
                    response = await server.send(data)
                    assert response.status_code == 400, (name, escape, response.text)
                    error = response.json()["error"]
                    assert error["type"] == "invalid_request_error" and "Traceback" not in response.text
                    assert error["message"].isprintable() and len(error["message"]) < 500
        whole = {
            name: (await server.send(body)).status_code
            for name, body in bodies_with("\\ud83d\\ude00").items()
        }
        assert whole["content"] == whole["stop"] == whole["schema"] == whole["user"] == 200, (
            "the trap: pairs are text"
        )
        assert (await server.post(ask("Hi", max_tokens=1))).status_code == 200


RAW: dict[str, bytes] = {
    "empty": b"",
    "no JSON": b"Hello",
    "half": b'{"messages": [',
    "list": b"[]",
    "invalid UTF-8": b'{"messages": [{"role": "user", "content": "\xff\xfe"}]}',
    "cut UTF-8": b'{"messages": [{"role": "user", "content": "\xf0\x9f\x98"}]}',
    "surrogate in UTF-8": b'{"messages": [{"role": "user", "content": "\xed\xa0\xbd"}]}',
    "UTF-16": '{"messages": []}'.encode("utf-16"),
    "byte order mark": b"\xef\xbb\xbf[]",
    "NUL in front": b"\0" + b'{"messages": []}',
    "deep list": b"[" * 20_000_000,
    "deep in a field": b'{"messages": ' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"}",
    "deep closed": b"[" * 1_000_000 + b"]" * 1_000_000,
    "deep metadata": b'{"messages": [{"role": "user", "content": "x"}], "metadata": '
    + b"[" * 129
    + b"]" * 129
    + b"}",
    "long number": b'{"messages": [], "seed": ' + b"9" * 100_000 + b"}",
    "trailing": json.dumps(ask("x")).encode() + b"}",
}


@pytest.mark.parametrize("name", RAW)
async def test_b136_bodies_that_are_no_json_are_400(name: str) -> None:
    async with live() as server:
        with trio.fail_after(5):
            response = await server.send(RAW[name])
        assert response.status_code == 400, response.text
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}
        assert (await server.post(ask("a\0b", max_tokens=1))).status_code == 200, "NUL is text"


CONTEXT = 96


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("pictures", [0, 1])
async def test_b137_at_the_edge_of_the_context(depth: int, pictures: int) -> None:
    """Prompts of context - 1, context, context + 1 tokens, image rows counted; what runs ends with 'length'."""
    async with live(slots=2, context=CONTEXT, depth=depth, prefill_budget=16) as server:
        parts = [picture(1)] * pictures
        (short,) = await server.all([ask(*parts, "b", max_tokens=1)])
        overhead = short["usage"]["prompt_tokens"] - 1
        assert overhead > 6 * pictures, "the trap: image rows count"

        def asked(tokens: int, wanted: Any, name: str = "max_tokens") -> dict[str, Any]:
            return ask(*parts, "b" * (tokens - overhead)) | {"max_tokens": None} | {name: wanted}

        for tokens in (CONTEXT - 3, CONTEXT - 1, CONTEXT, CONTEXT + 1, CONTEXT + 1000):
            room = CONTEXT - tokens
            for wanted in {0, 1, 2, max(room, 0), max(room + 1, 0), 10**9, 10**30, None}:
                for name in ("max_tokens", "max_completion_tokens"):
                    response = await server.post(asked(tokens, wanted, name))
                    allowed = room >= 1 and (wanted is None or 1 <= wanted <= room)
                    assert response.status_code == (200 if allowed else 400), (tokens, wanted, response.text)
                    if allowed:
                        answer = response.json()
                        assert answer["usage"]["prompt_tokens"] == tokens
                        assert answer["usage"]["completion_tokens"] == (room if wanted is None else wanted)
                        assert answer["choices"][0]["finish_reason"] == "length"
                        continue
                    error = response.json()["error"]
                    assert "-" not in error["message"], "a negative number"
                    if wanted is None or wanted >= 1:
                        assert error["code"] == "context_length_exceeded"
                        assert f"{tokens} tokens" in error["message"] and f"{CONTEXT}" in error["message"]
