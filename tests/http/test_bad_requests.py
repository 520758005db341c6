"""Every bad request gets a 4xx that names the field, as a JSON object, and the next request works."""

from __future__ import annotations

import json
from typing import Any

import pytest

from luce.errors import quoted
from tests.http.conftest import Server, data_url, serving
from tests.http.stubs import StubEngine, make_model

pytestmark = pytest.mark.trio

OK = [{"role": "user", "content": "Hi"}]
F = {"type": "function", "function": {"name": "f"}}


def asked(**fields: Any) -> dict[str, Any]:
    return {"messages": OK} | fields


def said_before(content: Any, **fields: Any) -> dict[str, Any]:
    messages = [*OK, {"role": "assistant", "content": content, **fields}]
    return {"messages": messages, "continue_final_message": True}


def pictured(*urls: Any) -> dict[str, Any]:
    return {
        "messages": [
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}} for url in urls]}
        ]
    }


PICTURE = data_url()
BASE64 = PICTURE.split(",")[1]
URL = "messages[0].content[0].image_url.url"

CASES: list[tuple[Any, str | None]] = [
    # messages
    ({}, "messages"),
    ({"messages": []}, "messages"),
    ({"messages": None}, "messages"),
    ({"messages": "Hi"}, "messages"),
    ({"messages": {}}, "messages"),
    ({"messages": ["Hi"]}, "messages[0]"),
    ({"messages": [{"content": "Hi"}]}, "messages[0].role"),
    ({"messages": [*OK, {"role": "wizard", "content": "Hi"}]}, "messages[1].role"),
    ({"messages": [{"role": 3, "content": "Hi"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": [3]}]}, "messages[0].content[0]"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
    (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": 1}]}]},
        "messages[0].content[0].text",
    ),
    ({"messages": [{"role": "user", "content": [{"type": "video_url"}]}]}, "messages[0].content[0].type"),
    ({"messages": [{"role": "user", "content": [{"text": "x"}]}]}, "messages[0].content[0].type"),
    ({"messages": [{"role": "user", "content": "x", "cache": 1}]}, "messages[0].cache"),
    ({"messages": [{"role": "user", "content": "x", "tool_calls": []}]}, "messages[0].tool_calls"),
    (
        {
            "messages": [
                *OK,
                {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]},
            ]
        },
        "messages[1].tool_calls[0].function.arguments",
    ),
    (
        {
            "messages": [
                *OK,
                {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[1]"}}]},
            ]
        },
        "messages[1].tool_calls[0].function.arguments",
    ),
    # wrong types
    (asked(stream="yes"), "stream"),
    (asked(stream=1), "stream"),
    (asked(temperature="1"), "temperature"),
    (asked(temperature=True), "temperature"),
    (asked(max_tokens=1.5), "max_tokens"),
    (asked(max_tokens="9"), "max_tokens"),
    (asked(max_tokens=True), "max_tokens"),
    (asked(seed="x"), "seed"),
    (asked(seed=1.5), "seed"),
    (asked(stop=3), "stop"),
    (asked(stop=["a", 3]), "stop[1]"),
    (asked(stop_token_ids=3), "stop_token_ids"),
    (asked(logprobs=3), "logprobs"),
    (asked(tools={}), "tools"),
    (asked(tools=[{"type": "function"}]), "tools[0].function"),
    (asked(tools=[{"type": "function", "function": {"name": ""}}]), "tools[0].function.name"),
    (asked(tools=[{"type": "code", "function": {"name": "x"}}]), "tools[0].type"),
    (
        asked(tools=[{"type": "function", "function": {"name": "x", "parameters": []}}]),
        "tools[0].function.parameters",
    ),
    (asked(chat_template_kwargs=[]), "chat_template_kwargs"),
    (asked(model=3), "model"),
    (asked(stream=True, stream_options=True), "stream_options"),
    (asked(stream=True, stream_options={"usage": True}), "stream_options.usage"),
    (asked(stream_options={"include_usage": True}), "stream_options"),
    # out of range
    (asked(temperature=-0.1), "temperature"),
    (asked(temperature=1000), "temperature"),
    (asked(top_p=0), "top_p"),
    (asked(top_p=1.01), "top_p"),
    (asked(top_k=-2), "top_k"),
    (asked(min_p=-1), "min_p"),
    (asked(min_p=2), "min_p"),
    (asked(repetition_penalty=0), "repetition_penalty"),
    (asked(repetition_penalty=-1), "repetition_penalty"),
    (asked(presence_penalty=3), "presence_penalty"),
    (asked(frequency_penalty=-3), "frequency_penalty"),
    (asked(seed=2**63), "seed"),
    (asked(seed=-(2**63) - 1), "seed"),
    (asked(max_tokens=0), "max_tokens"),
    (asked(max_tokens=-1), "max_tokens"),
    (asked(max_completion_tokens=0), "max_completion_tokens"),
    (asked(max_tokens=3, max_completion_tokens=4), "max_tokens"),
    (asked(min_tokens=-1), "min_tokens"),
    (asked(min_tokens=5, max_tokens=4), "min_tokens"),
    (asked(min_tokens=63), "min_tokens"),
    (asked(logprobs=True, top_logprobs=21), "top_logprobs"),
    (asked(logprobs=True, top_logprobs=-1), "top_logprobs"),
    (asked(top_logprobs=2), "top_logprobs"),
    (asked(stop=""), "stop"),
    (asked(stop=["a", ""]), "stop"),
    (asked(stop=["x"] * 17), "stop"),
    (asked(stop="x" * 1025), "stop"),
    (asked(stop=["x", "x" * 1025]), "stop[1]"),
    (asked(stop_token_ids=[-1]), "stop_token_ids"),
    (asked(stop_token_ids=[300]), "stop_token_ids"),
    # the vocabulary has 300 ids; the model's output is 20 wider
    (asked(logit_bias={"-1": 1}), "logit_bias"),
    (asked(logit_bias={"300": 1}), "logit_bias"),
    (asked(logit_bias={"1000000000000": 1}), "logit_bias"),
    (asked(logit_bias={"abc": 1}), "logit_bias"),
    (asked(logit_bias={"3.5": 1}), "logit_bias"),
    (asked(logit_bias={"3": 1e9}), "logit_bias"),
    (asked(logit_bias={"3": "1"}), "logit_bias"),
    (asked(logit_bias=[1]), "logit_bias"),
    # what is not served, and what is not known
    (asked(n=0), "n"),
    (asked(n=9), "n"),
    (asked(n=-1), "n"),
    (asked(n=2.5), "n"),
    (asked(n=2, best_of=1), "best_of"),
    (asked(n=2, best_of=3), "best_of"),
    (asked(best_of=2), "best_of"),
    (asked(n=True), "n"),
    (asked(response_format={"type": "json_object"}), "response_format"),
    (asked(tool_choice="required"), "tool_choice"),
    (asked(tool_choice={"type": "function"}), "tool_choice.function"),
    (asked(tool_choice={"type": "function", "function": {"name": "f"}}), "tool_choice"),
    (
        asked(tool_choice={"type": "function", "function": {"name": "g"}}, tools=[F]),
        "tool_choice.function.name",
    ),
    (
        asked(
            tool_choice={"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}, tools=[F]
        ),
        "tool_choice.allowed_tools.tools",
    ),
    (
        asked(tool_choice={"type": "allowed_tools", "allowed_tools": {"mode": "some", "tools": []}}),
        "tool_choice.allowed_tools.mode",
    ),
    (asked(tool_choice="required", tools=[F]), "tool_choice"),
    (asked(response_format={"type": "xml"}), "response_format.type"),
    (asked(response_format={"type": "json_schema"}), "response_format.json_schema"),
    (
        asked(response_format={"type": "json_schema", "json_schema": {"schema": 3}}),
        "response_format.json_schema.schema",
    ),
    (asked(response_format={"type": "json_object"}, regex="a"), "regex"),
    (asked(guided_json={}, structured_outputs={"choice": ["a"]}), "guided_json"),
    (asked(structured_outputs={"structural_tag": "x"}), "structured_outputs.structural_tag"),
    (asked(grammar=3), "grammar"),
    (asked(thinking_token_budget=-1), "thinking_token_budget"),
    (asked(thinking_token_budget="8"), "thinking_token_budget"),
    (asked(tool_choice="any"), "tool_choice"),
    (asked(parallel_tool_calls="no"), "parallel_tool_calls"),
    (asked(reasoning_format="qwen3"), "reasoning_format"),
    (asked(reasoning_format="deepseek-legacy"), "reasoning_format"),
    (asked(include_reasoning="no"), "include_reasoning"),
    (asked(reasoning_format="none", include_reasoning=False), "include_reasoning"),
    (asked(functions=[]), "functions"),
    (asked(audio={}), "audio"),
    (asked(modalities=["audio"]), "modalities"),
    (asked(reasoning_effort="huge"), "reasoning_effort"),
    (asked(reasoning_effort=3), "reasoning_effort"),
    (asked(enable_thinking=True), "enable_thinking"),
    (asked(add_generation_prompt=False), "add_generation_prompt"),
    (asked(add_generation_prompt=True, continue_final_message=True), "add_generation_prompt"),
    (asked(continue_final_message=True), "messages[0].role"),
    (said_before(""), "messages[1].content"),
    (said_before(None), "messages[1].content"),
    (said_before("x", reasoning_content="y"), "messages[1].reasoning_content"),
    (said_before("x", tool_calls=[{"function": {"name": "f"}}]), "messages[1].tool_calls"),
    ({"messages": [{"role": "assistant", "content": "x"}], "continue_final_message": True}, "messages"),
    (asked(request_id=""), "request_id"),
    (asked(request_id="a b"), "request_id"),
    (asked(request_id="x" * 129), "request_id"),
    (asked(request_id="é"), "request_id"),
    (asked(request_id="a\n"), "request_id"),
    (asked(priority=1), "priority"),
    (asked(priority=False), "priority"),
    (asked(truncate_prompt_tokens=5), "truncate_prompt_tokens"),
    (asked(bad_words=["x"]), "bad_words"),
    (asked(allowed_token_ids=[1]), "allowed_token_ids"),
    (asked(dry_multiplier=0.8), "dry_multiplier"),
    (asked(xtc_probability=0.1), "xtc_probability"),
    (asked(mirostat=2), "mirostat"),
    (asked(top_a=0.2), "top_a"),
    (asked(n_predict=5), "n_predict"),
    (asked(cache_salt=3), "cache_salt"),
    (
        asked(tools=[{"type": "function", "function": {"name": "f", "strict": True}}]),
        "tools",
    ),
    (asked(temprature=1), "temprature"),
    (asked(typical_p=0.5), "typical_p"),
    # the context holds 64
    ({"messages": [{"role": "user", "content": "x" * 64}]}, "messages"),
    ({"messages": [{"role": "user", "content": "x" * 1000}]}, "messages"),
    # pictures
    (pictured("http://example.com/a.png"), URL),
    (pictured("file:///etc/passwd"), URL),
    (pictured("/etc/passwd"), URL),
    (pictured(""), URL),
    (pictured("data:"), URL),
    (pictured("data:image/png;base64"), URL),
    (pictured("data:image/png," + BASE64), URL),
    (pictured("data:text/plain;base64," + BASE64), URL),
    (pictured("data:image/png;base64,"), URL),
    (pictured("data:image/png;base64,===="), URL),
    (pictured("data:image/png;base64," + BASE64[:-3] + "=="), URL),
    (pictured("data:image/png;base64,é" + BASE64), URL),
    (pictured("data:image/png;base64,a-_b"), URL),
    (pictured("data:image/png;base64," + "aGVsbG8h" * 10), URL),
    (pictured("data:image/png;base64," + BASE64[: len(BASE64) // 8 * 4]), URL),
    (pictured(PICTURE, "data:image/png;base64,!"), "messages[0].content[1].image_url.url"),
    (pictured(*[PICTURE] * 17), "messages"),
    (pictured(3), URL),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": PICTURE}]}]},
        "messages[0].content[0].image_url",
    ),
    (
        {
            "messages": [
                {
                    "role": "user",
                    "content": [{"type": "image_url", "image_url": {"url": PICTURE, "detail": "low"}}],
                }
            ]
        },
        "messages[0].content[0].image_url.detail",
    ),
]

RAW: list[tuple[bytes, str | None]] = [
    (b"", None),
    (b"{", None),
    (b"Hello", None),
    (b"[]", None),
    (b'"x"', None),
    (b"null", None),
    (b"\xff\xfe{}", None),
    (b'{"messages": [{"role": "user", "content": "\xff"}]}', None),
    (json.dumps(asked()).encode() + b" x", None),
    (json.dumps(asked(temperature=float("nan"))).encode(), "temperature"),
    (json.dumps(asked(temperature=float("-inf"))).encode(), "temperature"),
    (b'{"messages": [], "top_p": 1e400}', "top_p"),
    (b'{"messages": [], "logit_bias": {"3": NaN}}', "logit_bias.3"),
    (b'{"messages": [], "seed": ' + b"9" * 5000 + b"}", "seed"),
    (b'{"messages": [{"role": "user", "content": "\\ud83d"}]}', "messages[0].content"),
    (b'{"messages": [], "stop": ["a", "\\ud83d"]}', "stop[1]"),
    (
        b'{"messages": [], "tools": [{"function": {"description": "\\udc00"}}]}',
        "tools[0].function.description",
    ),
    (b'{"messages": [], "chat_template_kwargs": {"\\ud83d": 1}}', "chat_template_kwargs"),
    (b'{"messages": ' + b"[" * 500 + b"]" * 500 + b"}", None),
    (b'{"messages": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", None),
    (b"[" * 20_000_000, None),
    (
        json.dumps(asked()).encode()[:-1]
        + b', "chat_template_kwargs": {"a": '
        + b"[" * 200
        + b"]" * 200
        + b"}}",
        None,
    ),
]


async def check(server: Server, body: bytes, field: str | None, status: int = 400) -> dict[str, Any]:
    async with server.http() as client:
        response = await client.post(
            "/v1/chat/completions", content=body, headers={"content-type": "application/json"}
        )
        assert response.status_code == status, response.text
        assert response.headers["content-type"] == "application/json"
        error: dict[str, Any] = response.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["type"] == "invalid_request_error"
        assert error["param"] == field, error
        assert error["message"]
        assert len(error["message"]) < 500
        assert BASE64 not in error["message"]
        following = await client.post("/v1/chat/completions", json=asked())
        assert following.status_code == 200, following.text
    return error


@pytest.mark.parametrize(("body", "field"), CASES, ids=lambda value: str(value)[:60])
async def test_bad_request_names_the_field(body: Any, field: str | None) -> None:
    async with serving() as server:
        await check(server, json.dumps(body).encode(), field)


@pytest.mark.parametrize(("body", "field"), RAW, ids=lambda value: str(value)[:60])
async def test_body_that_is_not_json(body: bytes, field: str | None) -> None:
    async with serving() as server:
        await check(server, body, field)


async def test_nul_bytes_are_text() -> None:
    async with serving() as server, server.http() as client:
        body = {"messages": [{"role": "user", "content": "a\0b"}]}
        assert (await client.post("/v1/chat/completions", json=body)).status_code == 200


async def test_messages_say_what_to_do() -> None:
    async with serving() as server:
        assert (await check(server, json.dumps(asked(temprature=1)).encode(), "temprature"))["code"] == (
            "unknown_field"
        )
        error = await check(server, json.dumps(asked(n=9)).encode(), "n")
        assert "n must be from 1 to 8 (--max-choices), not 9" in error["message"]
        error = await check(server, json.dumps(asked(prediction={})).encode(), "prediction")
        assert error["message"] == "prediction is not supported"
        error = await check(server, json.dumps(pictured(*[PICTURE] * 17)).encode(), "messages")
        assert "17" in error["message"]
        assert "16" in error["message"]


@pytest.mark.parametrize(
    ("body", "field", "message"),
    [
        (
            {"messages": [{"role": "user", "content": [{"type": "input_text", "text": "x"}]}]},
            "messages[0].content[0].type",
            "messages[0].content[0].type: invalid value 'input_text'; it must be 'text' or 'image_url'",
        ),
        (
            {"messages": [{"role": "wizard", "content": "x"}]},
            "messages[0].role",
            "messages[0].role: invalid value 'wizard'; "
            "it must be 'system', 'developer', 'user', 'assistant' or 'tool'",
        ),
        (
            asked(tools=[{"type": "code", "function": {"name": "x"}}]),
            "tools[0].type",
            "tools[0].type: invalid value 'code'; it must be 'function'",
        ),
        (
            asked(stream=True, stream_options={"include_obfuscation": True}),
            "stream_options.include_obfuscation",
            "stream_options.include_obfuscation: invalid value true; it must be false",
        ),
        (
            {"messages": [{"role": "x" * 5000, "content": "x"}]},
            "messages[0].role",
            f"messages[0].role: invalid value {quoted('x' * 5000)}; "
            "it must be 'system', 'developer', 'user', 'assistant' or 'tool'",
        ),
        ({"messages": ["Hi"]}, "messages[0]", "messages[0]: expected object, got string"),
        ({"messages": {}}, "messages", "messages: expected array, got object"),
        (asked(max_tokens=1.5), "max_tokens", "max_tokens: expected integer or null, got number"),
        (asked(max_tokens="9"), "max_tokens", "max_tokens: expected integer or null, got string"),
        (asked(temperature=True), "temperature", "temperature: expected number or null, got boolean"),
        (asked(stop=3), "stop", "stop: expected string, array or null, got number"),
        (asked(stream=[]), "stream", "stream: expected boolean or null, got array"),
        (
            asked(tools=[{"type": "function", "function": {"name": ""}}]),
            "tools[0].function.name",
            "tools[0].function.name: expected string of length >= 1",
        ),
        (
            asked(typical_p=0.5),
            "typical_p",
            "this value of typical_p is not supported: "
            "the samplers are temperature, top_k, top_p, min_p and the penalties",
        ),
        (
            asked(max_new_tokens=5),
            "max_new_tokens",
            "max_new_tokens is not supported: it is called max_tokens here",
        ),
        (
            asked(reasoning={"effort": "low"}),
            "reasoning",
            "reasoning is not supported: reasoning_effort says how much the model thinks",
        ),
        (
            asked(thinking={"type": "enabled"}),
            "thinking",
            "thinking is not supported: chat_template_kwargs.enable_thinking turns it on and off, "
            "thinking_token_budget bounds it",
        ),
        (asked(temprature=1), "temprature", "temprature is not a known field; did you mean 'temperature'?"),
        (asked(maxTokens=1), "maxTokens", "maxTokens is not a known field; did you mean 'max_tokens'?"),
        (asked(sharpness=0.5), "sharpness", "sharpness is not a known field"),
        (
            {"messages": [{"role": "user", "contents": "x"}]},
            "messages[0].contents",
            "messages[0].contents is not a known field; did you mean 'content'?",
        ),
        (
            {"messages": [{"role": "user", "content": "x", "tool_call": []}]},
            "messages[0].tool_call",
            # only other roles have tool_calls
            "messages[0].tool_call is not a known field; messages[0] has content, name and role",
        ),
        (
            asked(tools=[{"name": "look_up", "input_schema": {}}]),
            "tools[0].name",
            "tools[0].name is not a known field; did you mean tools[0].function.name?",
        ),
        (
            asked(stream=True, stream_options={"includeUsage": True}),
            "stream_options.includeUsage",
            "stream_options.includeUsage is not a known field; did you mean 'include_usage'?",
        ),
    ],
    ids=lambda value: str(value)[:60],
)
async def test_messages_in_the_words_of_json(body: Any, field: str, message: str) -> None:
    async with serving() as server:
        assert (await check(server, json.dumps(body).encode(), field))["message"] == message


async def test_picture_limits() -> None:
    async with serving(max_images=1, max_image_bytes=100) as server:
        await check(server, json.dumps(pictured(PICTURE, PICTURE)).encode(), "messages")
        big = data_url(64, 64, "BMP")
        error = await check(server, json.dumps(pictured(big)).encode(), URL)
        assert "at most 100" in error["message"]


@pytest.mark.parametrize(
    "change", [lambda text: text, lambda text: "\n".join(text[i : i + 76] for i in range(0, len(text), 76))]
)
@pytest.mark.parametrize(
    "header",
    ["data:image/png;base64,", "DATA:IMAGE/PNG;BASE64,", "data:;base64,", "data:image/png;charset=x;base64,"],
)
async def test_forms_of_data_urls_that_are_taken(change: Any, header: str) -> None:
    async with serving() as server, server.http() as client:
        response = await client.post("/v1/chat/completions", json=pictured(header + change(BASE64)))
        assert response.status_code == 200, response.text


async def test_sixteen_pictures_are_taken() -> None:
    async with serving(max_images=16) as server, server.http() as client:
        # 16 pictures of 4 tokens fill the context of 64: refused for that, not for their number
        response = await client.post("/v1/chat/completions", json=pictured(*[PICTURE] * 16))
        assert response.json()["error"]["code"] == "context_length_exceeded"
        response = await client.post("/v1/chat/completions", json=pictured(*[PICTURE] * 15))
        assert response.status_code == 200


async def test_model_without_vision() -> None:
    async with serving(model=make_model(engine=StubEngine(images=False))) as server:
        await check(server, json.dumps(pictured(PICTURE)).encode(), URL)


async def test_unknown_model() -> None:
    async with serving() as server:
        error = await check(server, json.dumps(asked(model="gpt-9")).encode(), "model", 404)
        assert error["code"] == "model_not_found"
