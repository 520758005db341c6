"""Every spelling of a form says the same; required calls and thinking budgets through a whole server."""

from __future__ import annotations

import json
from typing import Any

import pytest

from luce.constraints.wish import TextForm, TextKind
from luce.errors import RequestError
from luce.http.json_body import typed
from luce.http.openai.chat_request import ChatRequest
from luce.http.openai.form_fields import text_form
from tests.faults.whole import ENGINES, ask, live

SCHEMA = {"type": "integer"}


@pytest.mark.parametrize(
    ("fields", "form"),
    [
        ({}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": None, "guided_json": None, "structured_outputs": {}}, None),
        ({"response_format": {"type": "json_object"}}, TextForm(TextKind.JSON_OBJECT, None, "response_format")),
        (
            {"response_format": {"type": "json_object", "schema": SCHEMA}},
            TextForm(TextKind.JSON_SCHEMA, SCHEMA, "response_format.schema"),
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}},
            TextForm(TextKind.JSON_SCHEMA, SCHEMA, "response_format.json_schema.schema"),
        ),
        ({"structured_outputs": {"json": SCHEMA}}, TextForm(TextKind.JSON_SCHEMA, SCHEMA, "structured_outputs.json")),
        (
            {"structured_outputs": {"json_object": True}},
            TextForm(TextKind.JSON_OBJECT, None, "structured_outputs.json_object"),
        ),
        ({"structured_outputs": {"choice": ["a"]}}, TextForm(TextKind.CHOICE, ["a"], "structured_outputs.choice")),
        ({"structured_outputs": {"regex": "a"}}, TextForm(TextKind.REGEX, "a", "structured_outputs.regex")),
        ({"guided_json": SCHEMA}, TextForm(TextKind.JSON_SCHEMA, SCHEMA, "guided_json")),
        ({"guided_regex": "a"}, TextForm(TextKind.REGEX, "a", "guided_regex")),
        ({"guided_choice": ["a", "b"]}, TextForm(TextKind.CHOICE, ["a", "b"], "guided_choice")),
        ({"guided_grammar": 'start: "a"'}, TextForm(TextKind.LARK, 'start: "a"', "guided_grammar")),
        ({"grammar": 'root ::= "a"'}, TextForm(TextKind.GBNF, 'root ::= "a"', "grammar")),
        ({"json_schema": SCHEMA}, TextForm(TextKind.JSON_SCHEMA, SCHEMA, "json_schema")),
        ({"json_schema": json.dumps(SCHEMA)}, TextForm(TextKind.JSON_SCHEMA, SCHEMA, "json_schema")),
        ({"guided_json": json.dumps(SCHEMA)}, TextForm(TextKind.JSON_SCHEMA, SCHEMA, "guided_json")),
        (
            {"structured_outputs": {"json": json.dumps(SCHEMA)}},
            TextForm(TextKind.JSON_SCHEMA, SCHEMA, "structured_outputs.json"),
        ),
        ({"regex": "a"}, TextForm(TextKind.REGEX, "a", "regex")),
        ({"ebnf": 'root ::= "a"'}, TextForm(TextKind.GBNF, 'root ::= "a"', "ebnf")),
    ],
)  # fmt: skip
def test_spellings(fields: dict[str, Any], form: TextForm | None) -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}], **fields}
    given = {key: value for key, value in body.items() if value is not None}
    assert text_form(typed(given, ChatRequest)) == form


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "FIELD is not valid JSON"),
        ('{"type":', "FIELD is not valid JSON"),
        ('{"type": "integer"} x', "FIELD is not valid JSON"),
        ("[1]", "FIELD must be a JSON object"),
        ('"{}"', "FIELD must be a JSON object"),
        ('{"enum": [1], "enum": [2]}', "FIELD: enum is given twice"),
        ('{"minimum": NaN}', "FIELD: minimum: the number is not finite, or too large"),
        ('{"a":' * 200 + "1" + "}" * 200, "FIELD nests deeper than"),
        (
            json.dumps({"title": "x" * 131_072}),
            "FIELD has 131085 bytes; at most 131072 are taken in a string",
        ),
    ],
    ids=range(9),
)
@pytest.mark.parametrize("field", ["json_schema", "guided_json", "structured_outputs.json"])
def test_a_schema_in_a_string_that_is_no_schema_names_its_field(field: str, text: str, says: str) -> None:
    outer, _, inner = field.partition(".")
    given = {"messages": [{"role": "user", "content": "Hi"}], outer: {inner: text} if inner else text}
    with pytest.raises(RequestError) as caught:
        text_form(typed(given, ChatRequest))
    assert caught.value.field == field
    assert caught.value.message.startswith(says.replace("FIELD", field))


TOOL = {
    "type": "function",
    "function": {
        "name": "paint",
        "parameters": {
            "type": "object",
            "properties": {"colour": {"enum": ["red", "green"]}, "twice": {"type": "boolean"}},
            "required": ["colour", "twice"],
            "additionalProperties": False,
        },
    },
}
OTHER = {"type": "function", "function": {"name": "wait", "parameters": {"type": "object", "properties": {}}}}
PAINT = {"type": "function", "function": {"name": "paint"}}
ALLOWED = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [PAINT]}}


@pytest.mark.trio
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("thinking", [False, True])
@pytest.mark.parametrize("choice", [PAINT, ALLOWED], ids=["named", "allowed"])
async def test_a_call_that_is_asked_for_is_made(engine: str, thinking: bool, choice: dict[str, Any]) -> None:
    fields: dict[str, Any] = {"tools": [OTHER, TOOL], "tool_choice": choice, "parallel_tool_calls": False}
    fields |= {"max_tokens": 200, "ignore_eos": False, "reasoning_format": "auto"}
    fields |= {"thinking_token_budget": 5} if thinking else {"reasoning_effort": "none"}
    async with live(engine=engine, context=1024) as server:
        found = (await server.post(ask("Paint!", **fields))).json()
    answer = found["choices"][0]
    (call,) = answer["message"]["tool_calls"]
    assert call["function"]["name"] == "paint" and answer["finish_reason"] == "tool_calls"
    arguments = json.loads(call["function"]["arguments"])
    assert arguments["colour"] in ("red", "green") and arguments["twice"] in (True, False)
    assert not answer["message"]["content"] and bool(answer["message"].get("reasoning_content")) == thinking


@pytest.mark.trio
@pytest.mark.parametrize("choice", [PAINT, ALLOWED], ids=["named", "allowed"])
async def test_a_tool_that_calls_cannot_be_held_to_is_named_by_its_place(choice: dict[str, Any]) -> None:
    """In the request, not among those that may be called."""
    function = TOOL["function"] | {"parameters": {"type": "object", "not": {}}, "strict": True}
    fields: dict[str, Any] = {"tools": [OTHER, TOOL | {"function": function}], "tool_choice": choice}
    async with live(context=1024) as server:
        response = await server.post(ask("Paint!", **fields))
        error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, "tools[1].function.parameters")
    assert error["message"].startswith("tools[1].function.parameters uses 'not'")


@pytest.mark.trio
@pytest.mark.parametrize("stream", [False, True])
async def test_a_form_that_costs_too_much_on_the_way_is_named(stream: bool) -> None:
    """It compiles, and is given up behind the first token."""
    asked = ask("Letters.", reasoning_effort="none", regex="a{1000000}", max_tokens=9, stream=stream)
    async with live(context=1024) as server:
        response = await server.post(asked)
    said = response.text.split("data: ")[-1] if stream else response.text
    error = json.loads(said)["error"]
    assert (error["param"], error["type"]) == ("regex", "invalid_request_error")
    assert error["message"].startswith("regex: ") and response.status_code == (200 if stream else 400)


@pytest.mark.trio
async def test_a_grammar_that_nothing_fits_is_told_so() -> None:
    async with live(context=1024) as server:
        for form in ({"grammar": "root ::= root"}, {"guided_json": {"$ref": "#"}}):
            response = await server.post(ask("Letters.", reasoning_effort="none", **form))
            message = response.json()["error"]["message"]
            assert (response.status_code, message.split(": ", 1)) == (
                400,
                [next(iter(form)), "no text fits it: a rule that needs itself never ends"],
            )


@pytest.mark.trio
async def test_choices_are_each_held_to_the_form() -> None:
    fields = {
        "n": 3,
        "temperature": 2.0,
        "seed": 3,
        "regex": "[a-z]{6}",
        "max_tokens": 30,
        "ignore_eos": False,
    }
    async with live(depth=2) as server:
        found = (await server.post(ask("Letters.", reasoning_effort="none", **fields))).json()
    texts = [choice["message"]["content"] for choice in found["choices"]]
    assert len(set(texts)) == 3
    assert all(len(text) == 6 and text.isalpha() and text.islower() for text in texts)
