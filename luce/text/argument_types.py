"""Values of tool-call parameters: from the text that a model writes to JSON, by the tool's declared schema.

The XML form of a call has no types of its own. A value becomes what its schema declares and the text spells; where it
spells none of that, and where nothing is declared, it stays the string that it is:

- string alone: the text, whatever it looks like.
- integer, number: a JSON number, for integer one without a fraction (``5.0`` is 5).
- boolean: true or false; null: null. Also True, False and None, since templates write past calls so.
- object, array: JSON of that kind.
- several of them (a list of types, anyOf, oneOf, nullable, enum): the first of null, integer, number, boolean, object,
  array that the text spells, else a string.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from luce.text.strict_json import strict_json

__all__ = ["ToolSchemas", "declared_types", "typed_value"]

_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_WORDS = {"true": True, "True": True, "false": False, "False": False}
_NULLS = ("null", "None")
_EXACT = 2.0**53
"""Whole numbers written with a fraction or exponent are taken as integers below it."""


class ToolSchemas:
    """The tools of one request, by name. Belongs to it; not shared.

    Args:
        tools: definitions in OpenAI form, as the client sent them.
    """

    def __init__(self, tools: list[Mapping[str, Any]] | None) -> None:
        functions = [tool["function"] for tool in tools or ()]
        self._parameters: dict[str, Any] = {one["name"]: one.get("parameters") for one in functions}
        self._types: dict[tuple[str, str], frozenset[str]] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._parameters

    def value(self, function: str, parameter: str, text: str) -> Any:
        """What the text stands for as that parameter of that function."""
        types = self._types.get((function, parameter))
        if types is None:
            types = self._types[function, parameter] = self._declared(function, parameter)
        return typed_value(text, types)

    def _declared(self, function: str, parameter: str) -> frozenset[str]:
        root = self._parameters.get(function)
        if not isinstance(root, Mapping):
            return frozenset()
        properties = root.get("properties")
        schema = properties.get(parameter) if isinstance(properties, Mapping) else None
        if schema is None:
            schema = root.get("additionalProperties")
        return declared_types(schema, root)


def declared_types(schema: Any, root: Any = None) -> frozenset[str]:
    """JSON types that a schema allows, as far as it says; none of them: it does not say.

    Args:
        root: the schema that local references (``#/$defs/…``) start from.
    """
    found: set[str] = set()
    seen: set[int] = set()  # schemas may refer to each other in circles
    waiting = [schema]
    while waiting:
        one = waiting.pop()
        if not isinstance(one, Mapping) or id(one) in seen:
            continue
        seen.add(id(one))
        found.update(_own_types(one))
        if isinstance(one.get("$ref"), str):
            waiting.append(_referred(one["$ref"], root))
        for union in ("anyOf", "oneOf", "allOf"):
            members = one.get(union)
            waiting += members if isinstance(members, list) else ()
    return frozenset(found)


def typed_value(text: str, types: frozenset[str]) -> Any:
    """The text as the first of these JSON types that it spells, else as it is."""
    bare = text.strip()
    if "null" in types and bare in _NULLS:
        return None
    if types & {"integer", "number"} and _NUMBER.fullmatch(bare):
        number = _number(bare, whole="number" not in types)
        if number is not None:
            return number
    if "boolean" in types and bare in _WORDS:
        return _WORDS[bare]
    if types & {"object", "array"} and bare[:1] in ("{", "["):
        found = _container(bare)
        if ("object" if isinstance(found, dict) else "array") in types and found is not None:
            return found
    return text


def _number(text: str, *, whole: bool) -> int | float | None:
    """None when it is past the range of a double, or has a fraction where none may be."""
    try:
        value = strict_json(text)
    except ValueError:
        return None
    if isinstance(value, int) or not whole:
        number: int | float = value
        return number
    return int(value) if value.is_integer() and math.fabs(value) < _EXACT else None


def _container(text: str) -> Any:
    """None when it is no JSON that can be sent on."""
    try:
        value = strict_json(text)
        json.dumps(value, ensure_ascii=False).encode()  # no lone surrogates
    except (ValueError, RecursionError):
        return None
    return value


def _own_types(schema: Mapping[str, Any]) -> Iterator[str]:
    """Types that the schema names itself, without what it refers to."""
    declared = schema.get("type")
    listed = [declared] if isinstance(declared, str) else declared
    if isinstance(listed, list):
        yield from (one for one in listed if isinstance(one, str))
    elif "enum" in schema or "const" in schema:
        allowed = schema.get("enum", [schema.get("const")])
        yield from (_type_of(one) for one in (allowed if isinstance(allowed, list) else ()))
    elif "properties" in schema:
        yield "object"
    elif "items" in schema or "prefixItems" in schema:
        yield "array"
    if schema.get("nullable") is True:
        yield "null"


def _referred(reference: str, root: Any) -> Any:
    """What a local reference points at, None when there is no such place."""
    if not reference.startswith("#"):
        return None
    found = root
    for step in reference[1:].split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, Mapping):
            found = found.get(name)
        elif isinstance(found, list) and name.isdecimal() and int(name) < len(found):
            found = found[int(name)]
        else:
            return None
    return found


def _type_of(value: Any) -> str:
    if value is None:
        return "null"
    kinds = ((bool, "boolean"), (int, "integer"), (float, "number"), (str, "string"), (list, "array"))
    return next((name for kind, name in kinds if isinstance(value, kind)), "object")
