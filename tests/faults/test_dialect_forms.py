"""Answers held to a form in Anthropic's Messages and OpenAI's Responses API: schemas, calls, the length of thinking.

A random model keeps no form by itself, so every answer that has one was held to it.
"""

from __future__ import annotations

import json
from typing import Any, Literal

import jsonschema
import pytest
from pydantic import BaseModel

from tests.faults.whole import Live, live
from tests.http.anthropic import talk as messages_api
from tests.http.responses import talk as responses_api

pytestmark = pytest.mark.trio

SHAPE = {
    "type": "object",
    "properties": {
        "color": {"enum": ["red", "blue"]},
        "count": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["color", "count"],
    "additionalProperties": False,
}
OFF = {"thinking": {"type": "disabled"}}
CLAUDE = {"messages": [{"role": "user", "content": "Say"}], "temperature": 0, "max_tokens": 200}
OPENAI = {"input": "Say", "temperature": 0, "max_output_tokens": 200}


def tool(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "input_schema": SHAPE} | more


def function(name: str, **more: Any) -> dict[str, Any]:
    return {"type": "function", "name": name, "parameters": SHAPE, "strict": None} | more


def thinking(on: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """Fields that turn it on or off, in the two APIs; bounded where it is on, as a random model never stops."""
    if on:
        return {"thinking": {"type": "enabled", "budget_tokens": 5}}, {"reasoning": {"effort": "high"}}
    return dict(OFF), {"reasoning": {"effort": "none"}}


def fits(value: Any) -> None:
    jsonschema.validate(value, SHAPE)


async def both(server: Live, **fields: Any) -> dict[str, Any]:
    """The same whole and streamed."""
    one = await messages_api.whole(server.server, **(CLAUDE | fields))
    other = messages_api.checked(await messages_api.events(server.server, **(CLAUDE | fields)))
    assert messages_api.alike(one) | {"usage": 0} == messages_api.alike(other) | {"usage": 0}
    return one


async def both_responses(server: Live, **fields: Any) -> dict[str, Any]:
    one = await responses_api.whole(server.server, **(OPENAI | fields))
    other = responses_api.checked(await responses_api.events(server.server, **(OPENAI | fields)))
    assert responses_api.alike(one) | {"usage": 0} == responses_api.alike(other) | {"usage": 0}
    return one


@pytest.mark.parametrize("on", [False, True])
async def test_b106_a_schema_holds_the_text_and_not_the_thoughts(on: bool) -> None:
    claude, _ = thinking(on)
    form = {"output_config": {"format": {"type": "json_schema", "schema": SHAPE}}}
    async with live(context=1024) as server:
        said = await both(server, **claude, **form)
        assert [block["type"] for block in said["content"]] == ["thinking", "text"][not on :]
        fits(json.loads(said["content"][-1]["text"]))
        assert said["stop_reason"] == "end_turn"
        if not on:
            for kind in (
                {"type": "json_schema", "name": "s", "schema": SHAPE, "strict": True},
                {"type": "json_object"},
            ):
                told = await both_responses(server, text={"format": kind}, reasoning={"effort": "none"})
                (item,) = told["output"]
                value = json.loads(item["content"][0]["text"]) if told["status"] == "completed" else {}
                assert told["text"]["format"] == kind and isinstance(value, dict)
                if kind["type"] == "json_schema":
                    fits(value)


@pytest.mark.parametrize("on", [False, True])
async def test_calls_may_be_required(on: bool) -> None:
    claude, _ = thinking(on)
    async with live(context=1024) as server:
        for choice, names in (
            ({"type": "any", "disable_parallel_tool_use": True}, {"f", "g"}),
            ({"type": "tool", "name": "g", "disable_parallel_tool_use": True}, {"g"}),
        ):
            said = await both(server, **claude, tools=[tool("f"), tool("g")], tool_choice=choice)
            call = said["content"][-1]
            assert [block["type"] for block in said["content"]] == ["thinking", "tool_use"][not on :]
            assert call["name"] in names and said["stop_reason"] == "tool_use"
            fits(call["input"])


async def test_calls_may_be_required_in_responses() -> None:
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "g"}]}
    async with live(context=1024) as server:
        for choice, names in (
            ("required", {"f", "g"}),
            ({"type": "function", "name": "g"}, {"g"}),
            (allowed, {"g"}),
        ):
            fields = {"tool_choice": choice, "parallel_tool_calls": False, "reasoning": {"effort": "none"}}
            told = await both_responses(server, tools=[function("f"), function("g")], **fields)
            (item,) = told["output"]
            assert item["type"] == "function_call" and item["name"] in names and told["tool_choice"] == choice
            fits(json.loads(item["arguments"]))


async def test_thinking_has_a_budget() -> None:
    async with live(context=1024) as server:
        for budget in (1, 7):
            said = await both(server, thinking={"type": "enabled", "budget_tokens": budget}, max_tokens=60)
            assert said["usage"]["output_tokens_details"]["thinking_tokens"] <= budget + 3, (
                "and the forced close"
            )
            assert [block["type"] for block in said["content"]][-1] == "text"


class Shape(BaseModel):
    color: Literal["red", "blue"]
    count: Literal[1, 2]


async def test_the_clients_parse() -> None:
    async with live(context=1024) as server:
        name = server.model.name
        async with server.server.openai() as sdk:
            asked: dict[str, Any] = {
                "model": name,
                "input": "Say",
                "reasoning": {"effort": "none"},
                "temperature": 0,
            }
            parsed = await sdk.responses.parse(text_format=Shape, **asked)
            assert isinstance(parsed.output_parsed, Shape)
            async with sdk.responses.stream(text_format=Shape, **asked) as stream:
                assert (await stream.get_final_response()).output_parsed == parsed.output_parsed
        async with messages_api.client(server.server) as sdk:
            body = {key: value for key, value in (CLAUDE | OFF).items() if key != "temperature"}
            greedy = {"temperature": 0}  # the client has no name for it any more
            said = await sdk.messages.parse(**body, model=name, output_format=Shape, extra_body=greedy)
            assert isinstance(said.parsed_output, Shape)


BAD_SCHEMA = {"type": "object", "properties": {"a": {"$ref": "#/$defs/missing"}}}


async def test_what_cannot_be_held_to_names_the_field_of_the_api() -> None:
    form = {"format": {"type": "json_schema", "schema": {"type": "wrong"}}}
    cases: list[tuple[str, dict[str, Any], str]] = [
        ("/v1/messages", CLAUDE | {"output_config": form}, "output_config.format.schema"),
        (
            "/v1/messages",
            CLAUDE
            | {
                "tools": [tool("f"), tool("g", input_schema=BAD_SCHEMA)],
                "tool_choice": {"type": "tool", "name": "g"},
            },
            "tools[1].input_schema",
        ),
        (
            "/v1/messages",
            CLAUDE | {"tools": [tool("f")], "tool_choice": {"type": "tool", "name": "h"}},
            "tool_choice.name",
        ),
        ("/v1/messages", CLAUDE | {"tool_choice": {"type": "any"}}, "tool_choice"),
        (
            "/v1/messages",
            CLAUDE | {"thinking": {"type": "enabled", "budget_tokens": -1}},
            "thinking.budget_tokens",
        ),
        (
            "/v1/responses",
            OPENAI | {"text": {"format": form["format"] | {"name": "s"}}},
            "text.format.schema",
        ),
        (
            "/v1/responses",
            OPENAI | {"tools": [function("f"), function("g", parameters=BAD_SCHEMA, strict=True)]},
            "tools[1].parameters",
        ),
        ("/v1/responses", OPENAI | {"tool_choice": {"type": "function", "name": "h"}}, "tool_choice.name"),
        ("/v1/responses", OPENAI | {"tool_choice": "required"}, "tool_choice"),
    ]
    async with live(context=1024) as server:
        for path, body, field in cases:
            response = await server.client.post(path, json=body)
            assert response.status_code == 400, (field, response.text)
            error = response.json()["error"]
            assert error.get("param", field).startswith(field), error
            assert error["message"].startswith(field) or field == "tool_choice", error
            assert ".function." not in error["message"]
