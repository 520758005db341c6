"""What a typed body could hold at a place: the names and values that an error message can offer."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from msgspec import inspect

from luce.errors import quoted

__all__ = ["accepted_values", "field_names", "in_json_words", "listed", "shown", "value_at"]

_STEP = re.compile(r"\[(?P<index>\d+)\]|(?P<name>[^.\[\]]+)")
_WORDS = {"str": "string", "int": "integer", "float": "number", "bool": "boolean"}
_QUOTED = re.compile(r"(?P<got>got )?`(?P<kinds>[^`]*)`")


def field_names(kind: type, body: Any, path: str) -> list[str]:
    """The fields of the object at ``path``, of all kinds that it may be."""
    names: dict[str, None] = {}
    for struct in _structs(*_walk(kind, body, path)):
        names |= dict.fromkeys(field.encode_name for field in struct.fields)
        if struct.tag_field is not None:
            names[struct.tag_field] = None
    return list(names)


def accepted_values(kind: type, body: Any, path: str) -> list[Any]:
    """The values that may stand at ``path``, where they can be counted."""
    types, _ = _walk(kind, body, path)
    return [value for one in types if isinstance(one, inspect.LiteralType) for value in one.values]


def value_at(body: Any, path: str) -> Any:
    """The value at ``path``; None where there is none."""
    for step in _STEP.finditer(path):
        body = _inside(body, step)
    return body


def in_json_words(text: str) -> str:
    """msgspec's message with the names that JSON has for kinds of values, instead of Python's.

    An integer is expected by that name, and found as a number.
    """

    def replaced(match: re.Match[str]) -> str:
        kinds = [_WORDS.get(kind, kind) for kind in match["kinds"].split(" | ")]
        if match["got"]:
            return "got " + listed("number" if kind == "integer" else kind for kind in kinds)
        return listed(kinds)

    return _QUOTED.sub(replaced, text)


def listed(words: Iterable[str], link: str = "or") -> str:
    """`a, b or c`."""
    *first, last = words
    return f"{', '.join(first)} {link} {last}" if first else last


def shown(value: Any) -> str:
    """A value for a message, in JSON's words where it has its own."""
    return json.dumps(value) if value is None or isinstance(value, bool) else quoted(value)


def _walk(kind: type, body: Any, path: str) -> tuple[list[inspect.Type], Any]:
    """(what may stand at ``path``, what does)."""
    types = _alternatives([_type_info(kind)])
    for step in _STEP.finditer(path):
        if step["index"] is not None:
            found = [one.item_type for one in types if isinstance(one, inspect.ListType)]
        else:
            found = [one for struct in _structs(types, body) for one in _members(struct, step["name"])]
        types, body = _alternatives(found), _inside(body, step)
    return types, body


def _members(struct: inspect.StructType, name: str) -> Iterator[inspect.Type]:
    if struct.tag_field == name:
        yield inspect.LiteralType((struct.tag,))
    for field in struct.fields:
        if field.encode_name == name:
            yield field.type


def _structs(types: Sequence[inspect.Type], value: Any) -> list[inspect.StructType]:
    """The kinds of object among ``types``: the one whose tag the value has, or all."""
    structs = [one for one in types if isinstance(one, inspect.StructType)]
    if not isinstance(value, dict):
        return structs
    tagged = [one for one in structs if one.tag_field is not None and value.get(one.tag_field) == one.tag]
    return tagged or structs


def _alternatives(types: Iterable[inspect.Type]) -> list[inspect.Type]:
    return [part for one in types for part in (one.types if isinstance(one, inspect.UnionType) else (one,))]


def _inside(value: Any, step: re.Match[str]) -> Any:
    if step["index"] is None:
        return value.get(step["name"]) if isinstance(value, dict) else None
    index = int(step["index"])
    return value[index] if isinstance(value, list) and index < len(value) else None


@functools.lru_cache(maxsize=8)
def _type_info(kind: type) -> inspect.Type:
    return inspect.type_info(kind)
