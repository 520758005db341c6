"""POST /v1/chat/completions through the openai client: answers, streams, and what reaches the model."""

from __future__ import annotations

import json
from typing import Any

import pytest

from luce.actors.token_buffer import Delta, End
from tests.http.conftest import serving
from tests.http.stubs import StubPreparer, StubService, make_model, sampled, saying

pytestmark = pytest.mark.trio

TEXT = "Grüße, 世界! 👩‍🚀"


async def test_whole_answer(user: Any) -> None:
    async with serving(StubService(saying(TEXT))) as server, server.openai() as client:
        answer = await client.chat.completions.create(model="stub", messages=user)
    assert answer.object == "chat.completion"
    assert answer.id.startswith("chatcmpl-")
    assert answer.model == "stub"
    assert answer.system_fingerprint == "stub-1"
    assert answer.choices[0].message.content == TEXT
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].logprobs is None
    assert answer.usage is not None
    count = len(TEXT.encode())
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (
        2,
        count,
        2 + count,
    )


async def test_stream_says_the_same(user: Any) -> None:
    async with serving(StubService(saying(TEXT, "length"))) as server, server.openai() as client:
        stream = await client.chat.completions.create(model="stub", messages=user, stream=True)
        chunks = [chunk async for chunk in stream]
    first, *middle, last = chunks
    assert (first.choices[0].delta.role, first.choices[0].delta.content) == ("assistant", "")
    assert "".join(chunk.choices[0].delta.content or "" for chunk in middle) == TEXT
    assert all(chunk.choices[0].finish_reason is None for chunk in (first, *middle))
    assert last.choices[0].finish_reason == "length"
    assert last.choices[0].delta.content is None
    assert {chunk.id for chunk in chunks} == {first.id}
    assert all("�" not in (chunk.choices[0].delta.content or "") for chunk in chunks)


async def _events(server: Any, body: dict[str, Any]) -> list[str]:
    async with server.http() as client:
        response = await client.post("/v1/chat/completions", json=body)
    assert response.headers["content-type"].startswith("text/event-stream")
    return [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]


@pytest.mark.parametrize("reason", ["stop", "length"])
async def test_usage_chunk(user: Any, reason: str) -> None:
    body = {"messages": user, "stream": True, "stream_options": {"include_usage": True}}
    async with serving(StubService(saying("abc", reason))) as server:
        *chunks, last, done = await _events(server, body)
        async with server.http() as client:
            whole = (await client.post("/v1/chat/completions", json={"messages": user})).json()
    assert done == "[DONE]"
    assert json.loads(last)["choices"] == []
    assert json.loads(last)["usage"] == whole["usage"]
    assert whole["usage"] == {
        "prompt_tokens": 2,
        "completion_tokens": 3,
        "total_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }
    for chunk in map(json.loads, chunks):
        assert chunk["usage"] is None
        assert len(chunk["choices"]) == 1


async def test_no_usage_unasked(user: Any) -> None:
    async with serving() as server:
        events = await _events(server, {"messages": user, "stream": True})
    assert events[-1] == "[DONE]"
    assert all("usage" not in json.loads(event) for event in events[:-1])


async def test_continuous_usage(user: Any) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    async with serving(StubService(saying("abc"))) as server:
        events = await _events(server, {"messages": user, "stream": True, "stream_options": options})
    counts = [json.loads(event)["usage"]["completion_tokens"] for event in events[:-1]]
    assert counts == [0, 1, 2, 3, 3, 3]


async def test_image_tokens_count(user: Any, picture: str) -> None:
    content = [{"type": "image_url", "image_url": {"url": picture}}, {"type": "text", "text": "ab"}]
    async with serving() as server, server.openai() as client:
        answer = await client.chat.completions.create(
            model="stub",
            messages=[{"role": "user", "content": content}],  # type: ignore[list-item,misc]
        )
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == 4 + 2


async def test_logprobs(user: Any) -> None:
    async with serving(StubService(saying("aé"))) as server, server.openai() as client:
        answer = await client.chat.completions.create(
            model="stub", messages=user, logprobs=True, top_logprobs=2
        )
        stream = await client.chat.completions.create(
            model="stub", messages=user, logprobs=True, top_logprobs=2, stream=True
        )
        streamed = [
            token
            async for chunk in stream
            if chunk.choices[0].logprobs is not None
            for token in chunk.choices[0].logprobs.content or ()
        ]
    assert answer.choices[0].logprobs is not None
    content = answer.choices[0].logprobs.content
    assert content == streamed
    assert content is not None
    assert [token.bytes for token in content] == [[0x61], [0xC3], [0xA9]]
    assert [token.logprob for token in content] == [-0.25] * 3
    assert [len(token.top_logprobs) for token in content] == [2] * 3


async def test_logprobs_without_alternatives_and_of_zero_probability(user: Any) -> None:
    async def script(submission: Any) -> Any:
        assert submission.params.logprobs == 0
        yield Delta("a", (sampled(97, float("-inf")),))
        yield End("stop")

    async with serving(StubService(script)) as server, server.openai() as client:
        answer = await client.chat.completions.create(model="stub", messages=user, logprobs=True)
    assert answer.choices[0].logprobs is not None
    (token,) = answer.choices[0].logprobs.content or ()
    assert (token.logprob, token.top_logprobs) == (-9999.0, [])


async def test_parameters_reach_the_service(user: Any) -> None:
    service = StubService()
    body = {
        "messages": user,
        "temperature": 0,
        "top_p": 0.5,
        "top_k": -1,
        "min_p": 0.1,
        "repetition_penalty": 1.1,
        "presence_penalty": -1,
        "frequency_penalty": 0.5,
        "logit_bias": {"7": -100, "299": 1.5},
        "seed": 0,
        "min_tokens": 2,
        "max_completion_tokens": 9,
        "stop": ["a", "b"],
        "stop_token_ids": [3],
        "ignore_eos": True,
        "include_stop_str_in_output": True,
        "skip_special_tokens": False,
    }
    async with serving(service) as server, server.http() as client:
        response = await client.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    assert response.headers["x-luce-seed"] == "0"
    (submission,) = service.submissions
    params = submission.params
    assert (params.temperature, params.top_p, params.top_k, params.min_p) == (0, 0.5, -1, 0.1)
    assert (params.repetition_penalty, params.presence_penalty, params.frequency_penalty) == (1.1, -1, 0.5)
    assert params.logit_bias == ((7, -100), (299, 1.5))
    assert (params.seed, params.min_tokens, params.max_tokens) == (0, 2, 9)
    assert (params.stop_token_ids, params.ignore_eos, params.eos_token_ids) == ((3,), True, (299,))
    assert (submission.stop, submission.include_stop, submission.skip_special_tokens) == (
        ("a", "b"),
        True,
        False,
    )


async def test_defaults_come_from_the_model_card_and_null_means_absent(user: Any) -> None:
    service = StubService()
    nulls = dict.fromkeys(
        ["temperature", "top_p", "stop", "max_tokens", "seed", "tools", "n", "logit_bias", "stream"]
    )
    async with serving(service) as server, server.http() as client:
        for body in ({"messages": user}, {"messages": user} | nulls):
            response = await client.post("/v1/chat/completions", json=body)
            assert response.status_code == 200, response.text
    for submission in service.submissions:
        params = submission.params
        assert (params.temperature, params.top_k, params.top_p) == (0.7, 20, 0.95)
        assert params.max_tokens == 64 - 2
        assert params.seed is not None
    first, second = service.submissions
    assert first.params.seed != second.params.seed
    assert first.id != second.id


async def test_messages_reach_the_template(picture: str) -> None:
    model = make_model()
    tools = [
        {
            "function": {"parameters": {"type": "object", "properties": {}}, "name": "look"},
            "type": "function",
        }
    ]
    messages = [
        {"role": "developer", "content": "Be brief."},
        {
            "role": "user",
            "content": [
                {"type": "image_url", "image_url": {"url": picture, "detail": "auto"}},
                {"type": "text", "text": "Look"},
            ],
            "name": "Ann",
        },
        {
            "role": "assistant",
            "content": None,
            "refusal": None,
            "annotations": [],
            "reasoning": "hm",
            "tool_calls": [
                {
                    "id": "1",
                    "index": 0,
                    "type": "function",
                    "function": {"name": "look", "arguments": '{"b": 1, "a": "é"}'},
                },
                {"id": "2", "type": "function", "function": {"name": "look", "arguments": ""}},
            ],
        },
        {"role": "tool", "content": "ok", "tool_call_id": "1"},
    ]
    body = {"messages": messages, "tools": tools, "chat_template_kwargs": {"enable_thinking": False}}
    async with serving(model=model) as server, server.http() as client:
        response = await client.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    (seen,) = model.preparer.seen  # type: ignore[attr-defined]
    assert json.dumps(seen["tools"]) == json.dumps(tools)  # key order and all
    assert seen["template_kwargs"] == {"enable_thinking": False}
    assert len(seen["images"]) == 1
    system, asking, answering, result = seen["messages"]
    assert system == {"role": "system", "content": "Be brief."}
    assert asking["content"] == [{"type": "image"}, {"type": "text", "text": "Look"}]
    assert answering["reasoning_content"] == "hm"
    assert [call["function"]["arguments"] for call in answering["tool_calls"]] == [{"b": 1, "a": "é"}, {}]
    assert result["content"] == "ok"
    assert list(answering["tool_calls"][0]["function"]["arguments"]) == ["b", "a"]


async def test_harmless_fields_are_taken(user: Any) -> None:
    body = {
        "messages": user,
        "user": "u",
        "metadata": {"a": "b"},
        "store": False,
        "service_tier": "auto",
        "safety_identifier": "x",
        "prompt_cache_key": "k",
        "n": 1,
        "response_format": {"type": "text"},
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "modalities": ["text"],
    }
    async with serving() as server, server.http() as client:
        response = await client.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text


async def test_other_names_of_the_model(user: Any) -> None:
    async with serving(aliases=("gpt-4o",)) as server, server.openai() as client:
        answer = await client.chat.completions.create(model="gpt-4o", messages=user)
        models = [model.id async for model in await client.models.list()]
        one = await client.models.retrieve("gpt-4o")
    assert answer.model == "stub"
    assert models == ["stub", "gpt-4o"]
    assert one.id == "gpt-4o"


async def test_request_ids(user: Any) -> None:
    async with serving() as server, server.http() as client:
        given = await client.get("/v1/models", headers={"x-request-id": "abc-1"})
        none = await client.get("/v1/models")
        strange = await client.get("/v1/models", headers={"x-request-id": "a b" * 100})
        wrong = await client.post("/v1/chat/completions", json={}, headers={"x-request-id": "abc-2"})
    assert given.headers["x-request-id"] == "abc-1"
    assert wrong.headers["x-request-id"] == "abc-2"
    assert len(none.headers["x-request-id"]) == 32
    assert len(strange.headers["x-request-id"]) == 32


async def test_health_and_readiness() -> None:
    service = StubService()
    async with serving(service) as server, server.http() as client:
        expected = {"ready": (200, 200), "draining": (200, 503), "starting": (200, 503), "failed": (503, 503)}
        for state, statuses in expected.items():
            service.state = state
            live, ready = await client.get("/health"), await client.get("/ready")
            assert (live.status_code, ready.status_code) == statuses, state
        assert ready.json()["error"]["message"] == "the server is failed"
        assert ready.headers["retry-after"] == "5"


async def test_fields_of_other_servers_that_ask_for_nothing(user: Any) -> None:
    nothing = {
        "priority": 0, "typical_p": 1.0, "mirostat": 0, "dry_multiplier": 0, "xtc_probability": 0.0, "bad_words": [],
        "top_a": 0, "cache_prompt": True, "echo": False, "add_special_tokens": False, "tool_choice": "none",
        "spaces_between_special_tokens": True, "truncate_prompt_tokens": None, "guided_json": None, "best_of": 1,
        "length_penalty": 1.0, "add_generation_prompt": True, "continue_final_message": False, "grammar": None,
    }  # fmt: skip
    async with serving() as server, server.http() as client:
        response = await client.post("/v1/chat/completions", json={"messages": user} | nothing)
        assert response.status_code == 200, response.text


@pytest.mark.parametrize("options", [{}, {"add_generation_prompt": False}, {"add_generation_prompt": None}])
@pytest.mark.parametrize(
    "content", ["I am", [{"type": "text", "text": "I "}, {"type": "text", "text": "am"}]]
)
async def test_an_answer_that_continues_the_last_message(user: Any, content: Any, options: Any) -> None:
    preparer = StubPreparer()
    messages = [*user, {"role": "assistant", "content": content}]
    async with serving(model=make_model(preparer=preparer)) as server, server.http() as client:
        body = {"messages": messages, "continue_final_message": True} | options
        response = await client.post("/v1/chat/completions", json=body)
        assert response.status_code == 200, response.text
        assert preparer.seen[-1]["continuation"] == "I am"
        assert [message["content"] for message in preparer.seen[-1]["messages"]] == ["Hi"]
        assert response.json()["choices"][0]["message"]["content"] == "Hello, wörld!"
        await client.post("/v1/chat/completions", json={"messages": messages})
        assert "continuation" not in preparer.seen[-1]
        assert len(preparer.seen[-1]["messages"]) == 2


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_id_in_the_body(user: Any, stream: bool) -> None:
    async with serving() as server, server.http() as client:
        for header in ({}, {"x-request-id": "other"}):
            body = {"messages": user, "request_id": "mine-1!", "stream": stream}
            response = await client.post("/v1/chat/completions", json=body, headers=header)
            assert response.headers["x-request-id"] == "mine-1!"
        response = await client.post(
            "/v1/chat/completions", json={"messages": user, "request_id": None}, headers=header
        )
        assert response.headers["x-request-id"] == "other"
