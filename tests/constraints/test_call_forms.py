"""Calls held to the model's own syntax and to the tools' schemas, read back by the parser of answers."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from luce.constraints.answer import AnswerConstraint
from luce.constraints.call_forms import CallSyntax, call_syntax
from luce.constraints.constrainer import Constrainer
from luce.constraints.wish import CallForm, ConstraintWish, TextForm, TextKind
from luce.errors import RequestError
from luce.text.argument_types import ToolSchemas
from luce.text.tool_calls import Text, ToolCall, ToolCallFinder
from tests.constraints.models import constrainer, feed, ids_of, legal, opened, text_of, written

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "place": {"type": "string", "maxLength": 12},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
        "unit": {"enum": ["C", "F"]},
        "exact": {"type": "boolean"},
        "where": {"$ref": "#/$defs/point"},
        "code": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{2}$"},
        "note": {"anyOf": [{"enum": ["x", "y"]}, {"type": "null"}]},
    },
    "required": ["place", "days", "unit", "exact", "where", "code", "note"],
    "additionalProperties": False,
    "$defs": {
        "point": {
            "type": "object",
            "properties": {
                "x": {"enum": [1, 2]},
                "next": {"anyOf": [{"$ref": "#/$defs/point"}, {"type": "null"}]},
            },
            "required": ["x", "next"],
            "additionalProperties": False,
        }
    },
}


PARAMETERS = "tools[0].function.parameters"


def tool(name: str = "weather", schema: Any = SCHEMA, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": schema, **more}}


def held(
    *tools: dict[str, Any], syntax: CallSyntax = CallSyntax.XML, text: TextForm | None = None, **form: Any
) -> AnswerConstraint:
    found = of(syntax).constraint(ConstraintWish(text=text, calls=CallForm(tools, **form)), thinking=False)
    assert found is not None
    return found


def of(syntax: CallSyntax) -> Constrainer:
    if syntax is CallSyntax.XML:
        return constrainer()
    return _HERMES


_MODEL = opened()
assert _MODEL.tokenizer is not None
_HERMES = Constrainer(_MODEL.tokenizer, _MODEL.config.eos_token_ids, '<tool_call>\n{"name": …}')


def read(text: str, *tools: dict[str, Any]) -> list[ToolCall | Text]:
    finder = ToolCallFinder(ToolSchemas(list(tools)))
    return [*finder.feed(text), *finder.flush(ended=True)]


def test_the_syntax_is_the_templates() -> None:
    assert constrainer().syntax is CallSyntax.XML and _HERMES.syntax is CallSyntax.JSON
    assert call_syntax("{{ messages }}") is None


@pytest.mark.parametrize("syntax", CallSyntax)
@pytest.mark.parametrize("single", [False, True])
def test_what_random_weights_write_is_calls(syntax: CallSyntax, single: bool) -> None:
    """Every answer is one call or more, and their arguments hold for an independent validator."""
    tools, counts = (tool(), tool("other", {"type": "object", "properties": {"a": {"enum": [1]}}})), set()
    for seed in range(40):
        constraint = held(*tools, syntax=syntax, required=True, single=single)
        ids = written(constraint, random.Random(seed), most=3000, steer=0.6)
        text = text_of([i for i in ids if i not in _MODEL.config.eos_token_ids])
        assert constraint.complete, text
        calls = [part for part in read(text, *tools) if isinstance(part, ToolCall)]
        rest = "".join(part.text for part in read(text, *tools) if isinstance(part, Text))
        assert calls and not rest.strip(), text
        for call in calls:
            schema = SCHEMA if call.name == "weather" else tools[1]["function"]["parameters"]
            Draft202012Validator(schema).validate(json.loads(call.arguments))
        counts.add(len(calls))
    assert counts == {1} if single else max(counts) > 1


def test_an_answer_that_must_call_begins_with_a_call() -> None:
    constraint = held(tool(), required=True)
    (opens,) = ids_of("<tool_call>")
    assert [i for i in range(constrainer().compiler.num_ids) if legal(constraint, i)] == [opens]


@pytest.mark.parametrize(
    "value", ["a", "", "two\nlines", "</param", "<function=x>", "a\n", "\n\na", 'say "é"', "</tool_call"]
)
def test_text_values_come_back_as_they_are(value: str) -> None:
    one = tool("f", {"type": "object", "properties": {"s": {"type": "string"}}, "required": ["s"]})
    constraint = held(one, required=True)
    written_call = f"\n<function=f>\n<parameter=s>\n{value}\n</parameter>\n</function>\n"
    ids = ids_of("<tool_call>", written_call, "</tool_call>", "<|im_end|>")
    assert feed(constraint, ids) == len(ids)
    (call,) = read("<tool_call>" + written_call + "</tool_call>", one)
    assert isinstance(call, ToolCall) and json.loads(call.arguments) == {"s": value}


@pytest.mark.parametrize("value", ["a</parameter>b", "<parameter=t>", "</parameter>\n<parameter=s>\nb"])
def test_text_values_hold_no_marks(value: str) -> None:
    one = tool("f", {"type": "object", "properties": {"s": {"type": "string"}}, "required": ["s"]})
    ids = ids_of(
        "<tool_call>", f"\n<function=f>\n<parameter=s>\n{value}\n</parameter>\n</function>\n", "</tool_call>"
    )
    assert feed(held(one, required=True), ids) < len(ids)


def test_strict_tools_are_held_once_a_call_begins() -> None:
    """Under auto: text is free, also between and behind calls."""
    constraint = held(
        tool(
            "f", {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}, strict=True
        )
    )
    call = ids_of(
        "<tool_call>", "\n<function=f>\n<parameter=n>\n7\n</parameter>\n</function>\n", "</tool_call>"
    )
    for _ in range(2):
        assert constraint.mask is None
        assert feed(constraint, ids_of("any <b> text { ")) and constraint.mask is None
        assert feed(constraint, call) == len(call)
    assert constraint.mask is None
    bad = ids_of("<tool_call>", "\n<function=f>\n<parameter=n>\nseven")
    assert feed(constraint, bad) < len(bad)


def test_tools_that_are_not_strict_are_free_under_auto() -> None:
    assert constrainer().constraint(ConstraintWish(calls=CallForm((tool(),))), thinking=False) is None
    loose, strict = tool("loose"), tool("strict", {"type": "object", "properties": {}}, strict=True)
    constraint = held(loose, strict)
    call = ids_of(
        "<tool_call>",
        "\n<function=loose>\n<parameter=days>\nmany\n</parameter>\n</function>\n",
        "</tool_call>",
    )
    assert feed(constraint, call) == len(call)


def test_text_with_a_form_or_calls() -> None:
    form = TextForm(TextKind.JSON_OBJECT)
    one = tool("f", {"type": "object", "properties": {}})
    call = ids_of("<tool_call>", "\n<function=f>\n</function>\n", "</tool_call>", "<|im_end|>")
    for ids in (ids_of("{}", "<|im_end|>"), call):
        constraint = held(one, text=form)
        assert feed(constraint, ids) == len(ids) and constraint.complete
    assert feed(held(one, text=form), ids_of("Sure")) == 0
    assert feed(held(one, text=form, required=True), ids_of("{}")) == 0


@pytest.mark.parametrize(
    ("one", "says", "field"),
    [
        (tool("a>b"), "cannot stand in a call", "tools[0].function.name"),
        (tool("f", {"type": "object", "properties": {"a>": {}}}), "cannot stand in a call", PARAMETERS),
        (tool("f", {"anyOf": [{}, {}]}, strict=True), "'anyOf' at its top", PARAMETERS),
        (tool("f", {"type": "objekt"}, strict=True), "has the type 'objekt'; arguments are an object", PARAMETERS),
        (tool("f", {"type": ["string", "null"]}, strict=True), "arguments are an object", PARAMETERS),
        (tool("f", {"required": ["x"], "additionalProperties": False}, strict=True), "requires 'x'", PARAMETERS),
        (tool("f", {"properties": {"a": {"$ref": "#/no"}}}, strict=True), "refers to nothing", PARAMETERS),
        (tool("f", {"properties": {"a": {"uniqueItems": True, "items": {}}}}, strict=True), "uniqueItems", "tools"),
        (tool("f", {"$ref": "#"}), "must be the schema of an object", PARAMETERS),
    ],
)  # fmt: skip
def test_tools_that_cannot_be_held_to_are_refused(one: dict[str, Any], says: str, field: str) -> None:
    with pytest.raises(RequestError, match=says) as caught:
        held(one, required=True)
    assert caught.value.field == field


@pytest.mark.parametrize("syntax", CallSyntax)
def test_what_cannot_be_held_to_is_left_out_of_tools_that_are_not_strict(syntax: CallSyntax) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "array", "uniqueItems": True}},
        "required": ["a"],
        "not": {},
    }
    constraint = held(tool("f", schema), syntax=syntax, required=True)
    assert written(constraint, random.Random(2), most=2000, steer=0.8)
