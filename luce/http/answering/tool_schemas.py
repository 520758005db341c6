"""Whether what a tool declares as the schema of its arguments can be one: a look at its shape, as cheap as that is.

A tool that is not strict binds no answer, and its schema goes to the model as text; one that is plainly no JSON schema
would be shown to it without a word to who wrote it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from luce.errors import RequestError, as_param, quoted

__all__ = ["check_tool_schema"]

_TYPES = ("object", "string", "number", "integer", "boolean", "array", "null")
_NAMED = ("properties", "$defs", "definitions")
"""Objects of schemas by name."""
_LISTED = ("anyOf", "oneOf", "allOf", "prefixItems", "items")
"""Schemas in a list; ``items`` may be one, too."""
_SINGLE = ("items", "additionalProperties")


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
        if not isinstance(one, Mapping):
            raise _wrong(field, place, "a schema, an object", one)
        _check_keywords(one, field, place)
        waiting += _inner(one, place)


def _check_keywords(schema: Mapping[str, Any], field: str, place: str) -> None:
    kind = schema.get("type")
    if kind is not None and kind not in _TYPES and not _all_types(kind):
        raise _wrong(field, f"{place}.type", f"a type of JSON ({', '.join(_TYPES)}) or a list of them", kind)
    properties = schema.get("properties")
    if properties is not None and not isinstance(properties, Mapping):
        raise _wrong(field, f"{place}.properties", "an object of schemas by name", properties)
    required = schema.get("required")
    if isinstance(required, bool) and place != field:
        return  # of a property, as drafts before the fourth had it
    if required is not None and not (
        isinstance(required, list) and all(isinstance(one, str) for one in required)
    ):
        raise _wrong(field, f"{place}.required", "a list of strings, the names of properties", required)


def _all_types(kind: object) -> bool:
    return isinstance(kind, list) and bool(kind) and all(one in _TYPES for one in kind)


def _inner(schema: Mapping[str, Any], place: str) -> Iterator[tuple[Any, str]]:
    for keyword in _NAMED:
        members = schema.get(keyword)
        if isinstance(members, Mapping):
            for name, one in members.items():
                yield one, f"{place}.{keyword}.{as_param(name)}"
    for keyword in _LISTED:
        members = schema.get(keyword)
        if isinstance(members, list):
            for index, one in enumerate(members):
                yield one, f"{place}.{keyword}[{index}]"
    for keyword in _SINGLE:
        one = schema.get(keyword)
        if isinstance(one, Mapping):
            yield one, f"{place}.{keyword}"


_LONGEST = 300


def _wrong(field: str, place: str, wanted: str, value: object) -> RequestError:
    if len(place) > _LONGEST:
        place = f"{place[:_LONGEST]}…"
    return RequestError(f"{place} must be {wanted}, not {quoted(value)}", field=field)
