"""Whether what a tool declares as the schema of its arguments can be one: a look at its shape, as cheap as that is.

A tool that is not strict binds no answer, and its schema goes to the model as text; one that is plainly no JSON schema
would be shown to it without a word to who wrote it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from luce.errors import RequestError, as_param, quoted

__all__ = ["check_tool_schema"]

_TYPES = ("object", "string", "number", "integer", "boolean", "array", "null")
_NAMED = ("properties", "$defs", "definitions")
"""Objects of schemas by name."""
_LISTED = ("anyOf", "oneOf", "allOf", "prefixItems", "items")
"""Schemas in a list; ``items`` may be one, too."""
_SINGLE = ("items", "additionalProperties")
_KEYWORDS = (*_NAMED, *_LISTED, "additionalProperties")


def check_tool_schema(schema: Mapping[str, Any] | None, field: str) -> None:
    """Look at the keywords ``type``, ``properties`` and ``required``, and at the schemas inside. Null means absent.

    Args:
        field: where the schema stands in the request.

    Raises:
        RequestError: names ``field``; the message says where in the schema.
    """
    waiting: list[tuple[Any, str]] = [] if schema is None else [(schema, field)]
    while waiting:
        one, place = waiting.pop()
        if isinstance(one, bool):
            continue
        if not isinstance(one, dict):
            raise _wrong(field, place, "a schema, an object", one)
        # In one piece: this is done for every schema of every tool of a request.
        kind, properties, required = one.get("type"), one.get("properties"), one.get("required")
        if kind is not None and kind not in _TYPES and not _all_types(kind):
            wanted = f"a type of JSON ({', '.join(_TYPES)}) or a list of them"
            raise _wrong(field, f"{place}.type", wanted, kind)
        if properties is not None and not isinstance(properties, dict):
            raise _wrong(field, f"{place}.properties", "an object of schemas by name", properties)
        if required is not None and not _names(required, outermost=place == field):
            raise _wrong(field, f"{place}.required", "a list of strings, the names of properties", required)
        for keyword in _KEYWORDS:
            if keyword in one:
                inner = one[keyword]
                if isinstance(inner, dict):
                    if keyword in _SINGLE:
                        waiting.append((inner, f"{place}.{keyword}"))
                    elif keyword in _NAMED:
                        for name, member in inner.items():
                            waiting.append((member, f"{place}.{keyword}.{as_param(name)}"))
                elif isinstance(inner, list) and keyword in _LISTED:
                    for index, member in enumerate(inner):
                        waiting.append((member, f"{place}.{keyword}[{index}]"))


def _all_types(kind: object) -> bool:
    return isinstance(kind, list) and bool(kind) and all(one in _TYPES for one in kind)


def _names(required: object, *, outermost: bool) -> bool:
    if isinstance(required, bool):
        return not outermost  # of a property, as drafts before the fourth had it
    return isinstance(required, list) and all(isinstance(one, str) for one in required)


_LONGEST = 300


def _wrong(field: str, place: str, wanted: str, value: object) -> RequestError:
    if len(place) > _LONGEST:
        place = f"{place[:_LONGEST]}…"
    return RequestError(f"{place} must be {wanted}, not {quoted(value)}", field=field)
