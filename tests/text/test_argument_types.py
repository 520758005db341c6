"""Values of parameters by the declared schema (B98)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from luce.text.argument_types import ToolSchemas, declared_types, typed_value

VALUES = ("02134", "1e5", "true", "null", "5.0", "2026-01-15", '{"a":1}', " x ")
SAME: dict[str, Any] = {value: value for value in VALUES}
TABLE: list[tuple[Any, dict[str, Any]]] = [
    ({"type": "string"}, {}),
    ({"type": "integer"}, {"1e5": 100_000, "5.0": 5}),
    ({"type": "number"}, {"1e5": 1e5, "5.0": 5.0}),
    ({"type": "boolean"}, {"true": True}),
    ({"type": "object"}, {'{"a":1}': {"a": 1}}),
    ({"type": "array"}, {}),
    ({"type": "null"}, {"null": None}),
    ({"type": ["integer", "null"]}, {"1e5": 100_000, "5.0": 5, "null": None}),
    ({"type": ["string", "null"]}, {"null": None}),
    ({"anyOf": [{"type": "boolean"}, {"type": "object"}]}, {"true": True, '{"a":1}': {"a": 1}}),
    ({"oneOf": [{"type": "number"}, {"type": "string"}]}, {"1e5": 1e5, "5.0": 5.0}),
    ({"type": "integer", "nullable": True}, {"1e5": 100_000, "5.0": 5, "null": None}),
    ({"enum": [1, "true", None]}, {"1e5": 100_000, "5.0": 5, "null": None}),
    ({"enum": ["02134", "true"]}, {}),
    ({"const": True}, {"true": True}),
    ({"$ref": "#/$defs/flag"}, {"true": True}),
    ({"properties": {}}, {'{"a":1}': {"a": 1}}),
    ({}, {}),
    (True, {}),
    (None, {}),
]
ROOT = {"$defs": {"flag": {"anyOf": [{"type": "boolean"}, {"$ref": "#/$defs/flag"}]}}}


@pytest.mark.parametrize(("schema", "changed"), TABLE)
def test_b98_table(schema: Any, changed: dict[str, Any]) -> None:
    types = declared_types(schema, ROOT)
    found = {value: typed_value(value, types) for value in VALUES}
    assert json.dumps(found) == json.dumps(SAME | changed), "json tells 5 from 5.0 and true from 1"


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("boolean", "False", False),
        ("boolean", " True\n", True),
        ("boolean", "yes", "yes"),
        ("null", "None", None),
        ("integer", "-12", -12),
        ("integer", " 7 ", 7),
        ("integer", "+7", "+7"),
        ("integer", "1_000", "1_000"),
        ("integer", "٣", "٣"),
        ("integer", "5.5", "5.5"),
        ("integer", "1x5", "1x5"),
        ("integer", "9" * 30, int("9" * 30)),
        ("integer", "9" * 400, "9" * 400),
        ("integer", "1e300", "1e300"),
        ("number", "1e999", "1e999"),
        ("number", "NaN", "NaN"),
        ("number", "7", 7),
        ("array", '[1, "é"]', [1, "é"]),
        ("array", "{}", "{}"),
        ("object", "[]", "[]"),
        ("object", "{'a': 1}", "{'a': 1}"),
        ("object", '{"a": NaN}', '{"a": NaN}'),
        ("object", '{"a": "\\ud800"}', '{"a": "\\ud800"}'),
        ("array", "[" * 100_000, "[" * 100_000),
        ("string", "", ""),
        ("integer", "", ""),
    ],
)
def test_what_does_not_fit_stays_text(kind: str, text: str, value: Any) -> None:
    found = typed_value(text, frozenset({kind}))
    assert found == value and type(found) is type(value)


def test_by_name() -> None:
    parameters = {"properties": {"n": {"type": "integer"}}, "additionalProperties": {"type": "boolean"}}
    tools = ToolSchemas([{"function": {"name": "f", "parameters": parameters}}, {"function": {"name": "g"}}])
    assert "f" in tools and "g" in tools and "h" not in tools
    assert [tools.value("f", "n", "1"), tools.value("f", "other", "true")] == [1, True]
    assert [tools.value("g", "n", "1"), tools.value("h", "n", "1")] == ["1", "1"]


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/nowhere"},
        {"$ref": "#/list/7"},
        {"$ref": "http://elsewhere/x"},
        {"$ref": "#"},
        {"type": 5},
        {"type": [5]},
        {"anyOf": "x"},
        {"enum": 3},
    ],
)
def test_schemas_that_say_nothing(schema: Any) -> None:
    assert declared_types(schema, {"list": [], "$ref": "#"}) == frozenset()


def test_schemas_in_circles_end() -> None:
    circle: dict[str, Any] = {"anyOf": [{"$ref": "#"}] * 20 + [{"type": "null"}, {"$ref": "#/$defs/0"}]}
    circle["$defs"] = {str(n): {"$ref": f"#/$defs/{n + 1}"} for n in range(5000)} | {
        "5000": {"type": "array"}
    }
    assert declared_types(circle, circle) == {"null", "array"}
