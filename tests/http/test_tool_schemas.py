"""Tools whose arguments are declared by what is plainly no JSON schema, in the three APIs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.http.conftest import serving

pytestmark = pytest.mark.trio

APIS = {
    "/v1/chat/completions": "tools[1].function.parameters",
    "/v1/responses": "tools[1].parameters",
    "/v1/messages": "tools[1].input_schema",
    "/v1/messages/count_tokens": "tools[1].input_schema",
}
HI = [{"role": "user", "content": "Hi"}]


def asked(path: str, schema: Any, **fields: Any) -> dict[str, Any]:
    good = {"type": "object", "properties": {}}
    if path == "/v1/chat/completions":
        functions = [{"name": "a", "parameters": good}, {"name": "b", "parameters": schema}]
        return {
            "messages": HI,
            "tools": [{"type": "function", "function": one} for one in functions],
            **fields,
        }
    if path == "/v1/responses":
        tools = [{"type": "function", "name": "a", "parameters": good},
                 {"type": "function", "name": "b", "parameters": schema}]  # fmt: skip
        return {"input": "Hi", "tools": tools, **fields}
    tools = [{"name": "a", "input_schema": good}, {"name": "b", "input_schema": schema}]
    extra = {} if path.endswith("count_tokens") else {"max_tokens": 5}
    return {"messages": HI, "tools": tools, **extra, **fields}


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"type": "objekt", "properties": [1]}, ".type must be a type of JSON (object, string, "),
    ({"type": "object", "properties": [1]}, ".properties must be an object of schemas by name, not [1]"),
    ({"type": ["string", "nil"]}, ".type must be"),
    ({"type": []}, ".type must be"),
    ({"type": {"a": 1}}, ".type must be"),
    ({"type": "object", "required": "x"}, ".required must be a list of strings, the names of properties, not 'x'"),
    ({"type": "object", "required": [1]}, ".required must be"),
    ({"type": "object", "required": True}, ".required must be"),
    ({"properties": {"x": 1}}, ".properties.x must be a schema, an object, not 1"),
    ({"properties": {"x": {"type": "strng"}}}, ".properties.x.type must be"),
    ({"properties": {"type": {"type": "strng"}}}, ".properties.type.type must be"),
    ({"properties": {"x": {"type": "array", "items": {"type": 7}}}}, ".properties.x.items.type must be"),
    ({"properties": {"x": {"anyOf": [{"type": "null"}, {"required": 1}]}}}, ".properties.x.anyOf[1].required must be"),
    ({"$defs": {"x": {"properties": "y"}}}, ".$defs.x.properties must be"),
    ({"additionalProperties": {"type": "any"}}, ".additionalProperties.type must be"),
    ({"properties": {"a\nb\x1b": {"type": "x"}}}, ".properties.a\\nb\\x1b.type must be"),
]  # fmt: skip


@pytest.mark.parametrize("path", APIS)
async def test_what_is_no_schema_is_refused_by_its_place(path: str) -> None:
    async with serving() as server, server.http() as client:
        for schema, says in WRONG:
            for fields in ({}, {"tool_choice": {"type": "none"} if "messages" in path else "none"}):
                response = await client.post(path, json=asked(path, schema, **fields))
                error = response.json()["error"]
                assert response.status_code == 400, schema
                assert error["message"].startswith(f"{APIS[path]}{says}"), error
                assert error["message"].isprintable() and len(error["message"]) < 600
                assert error.get("param", APIS[path]) == APIS[path]


RIGHT: list[dict[str, Any]] = [
    {},
    {"type": "object", "properties": None, "required": None},
    {"type": ["object", "null"], "additionalProperties": False},
    {"properties": {"type": {"type": "string"}, "required": {"type": "boolean"}, "properties": {}}},
    {"properties": {"x": {"type": "string", "required": True}}, "required": ["x"]},
    {"properties": {"x": {"items": [{"type": "string"}, True]}, "y": {"enum": ["strng", 1]}, "z": True}},
    {"properties": {"x": {"default": {"type": "strng"}, "const": {"properties": 1}, "format": "date"}}},
    {"$ref": "#/$defs/a", "$defs": {"a": {"type": "object"}}, "x-mine": {"type": 1}},
]


@pytest.mark.parametrize("path", APIS)
async def test_what_may_be_one_is_taken(path: str) -> None:
    async with serving() as server, server.http() as client:
        for schema in RIGHT:
            response = await client.post(path, json=asked(path, schema))
            assert response.status_code == 200, (schema, response.text)
