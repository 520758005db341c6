"""Bodies of POST /v1/responses: what reaches the model, and what is refused and how."""

from __future__ import annotations

from typing import Any

import pytest

from tests.http.conftest import data_url, serving
from tests.http.responses.talk import post
from tests.http.stubs import StubEngine, StubPreparer, StubService, make_model

pytestmark = pytest.mark.trio

PICTURE = data_url()
TEXT = {"type": "input_text", "text": "Look"}
IMAGE = {"type": "input_image", "image_url": PICTURE, "detail": "auto", "file_id": None}
USER = {"role": "user", "content": "Hi"}
TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": None}


def called(name: str = "f", number: int = 1, arguments: str = '{"b": 1, "a": "é"}') -> dict[str, Any]:
    return {"type": "function_call", "call_id": f"call_{number}", "name": name, "arguments": arguments}


def gave(number: int, output: Any) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": f"call_{number}", "output": output}


def thought(*texts: str, **more: Any) -> dict[str, Any]:
    content = [{"type": "reasoning_text", "text": text} for text in texts]
    return {"type": "reasoning", "id": "rs_1", "summary": [], "content": content} | more


def said(text: str) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [part]}


async def seen(thinking: bool = False, **fields: Any) -> dict[str, Any]:
    """What the template is given."""
    preparer = StubPreparer(thinking)
    async with serving(model=make_model(preparer=preparer)) as server:
        response = await post(server, {"input": "Hi"} | fields)
    assert response.status_code == 200, response.text
    (one,) = preparer.seen
    return one


async def test_every_kind_of_item_reaches_the_template() -> None:
    items = [
        {"role": "developer", "content": [TEXT]},
        {"type": "message", "role": "user", "content": [IMAGE, TEXT, {"type": "input_text", "text": "!"}]},
        thought("hm", "so"),
        said("I ask"),
        called(),
        called("g", 2, ""),
        gave(1, "one"),
        gave(2, [TEXT, IMAGE]),
        thought("now", status="completed", encrypted_content=None),
        said("It is "),
        {"role": "assistant", "content": "so"},
        {"role": "user", "content": "And?"},
    ]
    given = await seen(input=items, instructions="Be brief.", tools=[TOOL])
    system, asking, first, one, two, second, last = given["messages"]
    assert system == {"role": "system", "content": "Be brief.\n\nLook"}
    assert asking == {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Look!"}]}
    assert first["content"] == "I ask" and first["reasoning_content"] == "hm\nso"
    assert [call["function"] for call in first["tool_calls"]] == [
        {"name": "f", "arguments": {"b": 1, "a": "é"}},
        {"name": "g", "arguments": {}},
    ]
    assert [call["id"] for call in first["tool_calls"]] == ["call_1", "call_2"]
    assert one == {"role": "tool", "content": "one", "tool_call_id": "call_1"}
    assert two["content"] == [{"type": "text", "text": "Look"}, {"type": "image"}]
    assert second == {"role": "assistant", "content": "It is so", "reasoning_content": "now"}
    assert last == {"role": "user", "content": "And?"}
    assert len(given["images"]) == 2
    assert given["tools"] == [
        {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    ]


async def test_a_string_is_a_message_of_the_user_s() -> None:
    given = await seen()
    assert list(given["messages"]) == [{"role": "user", "content": "Hi"}]
    assert (given["tools"], given["template_kwargs"]) == (None, {})
    given = await seen(input=[USER, {"role": "system", "content": "s"}, USER])
    assert [message["role"] for message in given["messages"]] == ["user", "system", "user"]


async def test_summaries_stand_for_reasoning_that_is_not_there() -> None:
    item = {"type": "reasoning", "id": "x", "summary": [{"type": "summary_text", "text": "in short"}]}
    given = await seen(input=[USER, item | {"encrypted_content": "zzz"}, said("a"), USER])
    assert given["messages"][1]["reasoning_content"] == "in short"
    given = await seen(input=[USER, item | {"summary": []}, said("a"), USER])
    assert "reasoning_content" not in given["messages"][1]


@pytest.mark.parametrize(
    ("options", "effort", "expected"),
    [
        ({"enable_thinking"}, "none", {"enable_thinking": False}),
        ({"enable_thinking"}, "max", {"enable_thinking": True}),
        ({"enable_thinking"}, None, {}),
        ({"reasoning_effort"}, "max", {"reasoning_effort": "max"}),
        ({"reasoning_effort"}, "none", None),
        ({"reasoning_effort", "enable_thinking"}, "none", {"enable_thinking": False}),
        (
            {"reasoning_effort", "enable_thinking"},
            "xhigh",
            {"enable_thinking": True, "reasoning_effort": "xhigh"},
        ),
        (set(), "max", {}),
        (set(), "none", None),
        (set(), None, {}),
    ],
)
async def test_effort_is_the_template_s(options: set[str], effort: str | None, expected: Any) -> None:
    preparer = StubPreparer()
    preparer.options = frozenset(options)
    asked = {"input": "Hi", "reasoning": {"effort": effort, "summary": "auto"}}
    async with serving(model=make_model(preparer=preparer)) as server:
        response = await post(server, asked)
    if expected is None:
        assert response.json()["error"]["param"] == "reasoning.effort"
    else:
        assert response.status_code == 200, response.text
        assert preparer.seen[0]["template_kwargs"] == expected


async def test_parameters_reach_the_service() -> None:
    service = StubService()
    fields = {
        "temperature": 0,
        "top_p": 0.25,
        "seed": 0,
        "timeout": 9.5,
        "max_output_tokens": 9,
        "cache_salt": "s",
    }
    logs = {"include": ["message.output_text.logprobs"], "top_logprobs": 3}
    names = "temperature top_p tools tool_choice text reasoning store stream metadata previous_response_id conversation"
    nulls = dict.fromkeys([*names.split(), "background", "truncation", "include", "instructions"])
    async with serving(service) as server:
        for asked in (fields, logs, nulls):
            assert (await post(server, {"input": "Hi"} | asked)).status_code == 200
    first, second, third = service.submissions
    params = first.params
    assert (params.temperature, params.top_p, params.seed, params.max_tokens) == (0, 0.25, 0, 9)
    assert (first.timeout, first.cache_salt, params.logprobs) == (9.5, b"s", None)
    assert second.params.logprobs == 3
    assert (third.params.temperature, third.params.top_k, third.params.eos_token_ids) == (0.7, 20, (299,))


async def test_harmless_fields_are_taken() -> None:
    fields = {
        "store": True,
        "service_tier": "auto",
        "prompt_cache_retention": "24h",
        "background": False,
        "truncation": "disabled",
        "include": ["reasoning.encrypted_content"],
        "text": {"format": {"type": "text"}, "verbosity": "medium"},
        "stream": True,
        "stream_options": {"include_obfuscation": False},
        "tools": [TOOL | {"defer_loading": False, "async": False, "strict": False}],
        "context_management": [],
    }
    async with serving() as server:
        assert (await post(server, {"input": "Hi"} | fields)).status_code == 200


MANY = {f"k{i}": "v" for i in range(17)}
BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"input": None}, "input", ""),
    ({"input": []}, "input", "input must hold a message of the user's"),
    ({"input": 3}, "input", ""),
    ({"input": ["Hi"]}, "input[0]", ""),
    ({"input": [{"content": "x"}]}, "input[0].type", ""),
    ({"input": [{"role": "wizard", "content": "x"}]}, "input[0].role", ""),
    ({"input": [{"role": "user"}]}, "input[0].content", "input[0].content is missing"),
    (
        {"input": [{"role": "user", "content": [{"type": "text", "text": "x"}]}]},
        "input[0].content[0].type",
        "",
    ),
    ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "input[0].content[0].type", ""),
    (
        {"input": [{"role": "user", "content": [IMAGE | {"image_url": "data:,x"}]}]},
        "input[0].content[0].image_url",
        "input[0].content[0].image_url",
    ),
    (
        {"input": [{"role": "user", "content": [IMAGE | {"detail": "low"}]}]},
        "input[0].content[0].detail",
        "",
    ),
    ({"input": [{"role": "user", "content": [IMAGE | {"file_id": "f"}]}]}, "input[0].content[0].file_id", ""),
    (
        {"input": [{"role": "system", "content": [IMAGE]}, USER]},
        "input[0].content",
        "input[0].content: a system",
    ),
    ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type", "input[0]: item_reference is not"),
    ({"input": [{"type": "computer_call"}]}, "input[0].type", ""),
    ({"input": [USER, called(arguments="{")]}, "input[1].arguments", "input[1].arguments is not valid JSON"),
    (
        {"input": [USER, called(arguments="[1]")]},
        "input[1].arguments",
        "input[1].arguments must be a JSON object",
    ),
    ({"input": [USER, called(arguments='{"a": "\\ud800"}')]}, "input[1].arguments", ""),
    ({"input": [USER, called("")]}, "input[1].name", ""),
    (
        {"input": [USER, thought(encrypted_content="x")]},
        "input[1].encrypted_content",
        "input[1]: encrypted_content",
    ),
    ({"input": [USER, gave(1, [said("x")])]}, "input[1].output[0].type", ""),
    ({"input": "x" * 64}, "input", "prompt is too long: the prompt has 64 tokens"),
    ({"input": "x" * 200_000}, "input", "prompt is too long: input and tools hold 2000"),
    ({"instructions": 3}, "instructions", ""),
    ({"max_output_tokens": 0}, "max_output_tokens", "max_output_tokens must be at least 1"),
    ({"max_output_tokens": 63}, "max_output_tokens", "max_output_tokens is 63, but the prompt has 2"),
    ({"temperature": -1}, "temperature", ""),
    ({"top_p": 2}, "top_p", ""),
    ({"top_logprobs": 3}, "top_logprobs", "top_logprobs needs"),
    ({"include": ["all"]}, "include[0]", ""),
    (
        {"tools": [{"type": "web_search", "search_context_size": "low"}]},
        "tools[0].type",
        "tools[0].type: tools of",
    ),
    ({"tools": [TOOL, {"type": "mcp", "server_url": "x"}]}, "tools[1].type", "tools[1].type: tools of"),
    ({"tools": [{"type": "function"}]}, "tools[0].name", "tools[0].name is missing"),
    ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools[0].function", ""),
    ({"tool_choice": "any"}, "tool_choice", ""),
    ({"tool_choice": {"type": "web_search_preview"}}, "tool_choice.type", ""),
    (
        {
            "tool_choice": {
                "type": "allowed_tools",
                "mode": "auto",
                "tools": [{"type": "function", "name": "g"}],
            }
        },
        "tool_choice.tools[0].name",
        "",
    ),
    ({"reasoning": {"effort": "huge"}}, "reasoning.effort", ""),
    ({"reasoning": {"summary": "detailed"}}, "reasoning.summary", ""),
    ({"text": {"verbosity": "low"}}, "text.verbosity", ""),
    ({"text": {"format": {"type": "grammar"}}}, "text.format.type", ""),
    ({"metadata": {"a": 3}}, "metadata", ""),
    ({"metadata": MANY}, "metadata", "metadata holds 17 pairs"),
    (
        {"previous_response_id": "resp_1"},
        "previous_response_id",
        "previous_response_id is not supported: this",
    ),
    ({"conversation": "c"}, "conversation", "conversation is not supported"),
    ({"prompt": {"id": "p"}}, "prompt", "prompt is not supported"),
    ({"background": True}, "background", "this value of background is not supported"),
    ({"truncation": "auto"}, "truncation", "this value of truncation is not supported"),
    ({"stream_options": {"include_obfuscation": False}}, "stream_options", "stream_options needs stream"),
    (
        {"stream": True, "stream_options": {"include_obfuscation": True}},
        "stream_options.include_obfuscation",
        "",
    ),
    ({"messages": [USER]}, "messages", "messages is not a known field"),
    ({"timeout": 0}, "timeout", ""),
]


@pytest.mark.parametrize(
    ("fields", "param", "words"), BAD, ids=[f"{i}-{bad[1]}" for i, bad in enumerate(BAD)]
)
async def test_bad_requests_name_the_field(fields: dict[str, Any], param: str, words: str) -> None:
    async with serving() as server:
        response = await post(server, {"input": "Hi"} | fields)
        assert response.status_code == 400, response.text
        error = response.json()["error"]
        assert error["type"] == "invalid_request_error"
        assert error["param"] is not None and error["param"].startswith(param), error
        assert error["message"].startswith(words), error
        assert (await post(server, {"input": "Hi"})).status_code == 200


async def test_a_model_that_is_not_here_and_pictures_for_one_that_reads_none() -> None:
    async with serving() as server:
        response = await post(server, {"input": "Hi", "model": "gpt-6"})
        assert (response.status_code, response.json()["error"]["code"]) == (404, "model_not_found")
    async with serving(model=make_model(engine=StubEngine(images=False))) as server:
        response = await post(server, {"input": [{"role": "user", "content": [IMAGE]}]})
        assert response.json()["error"]["param"] == "input[0].content[0].image_url"


async def test_too_much_text() -> None:
    text = "x" * (1 << 20)
    async with serving() as server:
        for asked in (
            {"input": text},
            {"input": [USER, said(text), USER]},
            {"input": "Hi", "instructions": text},
            {"input": "Hi", "tools": [TOOL | {"description": text}]},
        ):
            response = await post(server, asked)
            assert response.status_code == 400
            assert response.json()["error"]["code"] == "context_length_exceeded"
