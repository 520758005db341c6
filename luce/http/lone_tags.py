"""Names of kinds (``type``, ``role``) that a body leaves out where only one kind can stand.

msgspec takes an object without its tag there, and not where there are several kinds. What is documented as needed is
needed everywhere.
"""

from __future__ import annotations

import functools
from typing import Any

from msgspec import inspect

__all__ = ["missing_tag"]


def missing_tag(kind: type, body: Any) -> str | None:
    """The place of the first tag that is missing in a body that fits ``kind`` otherwise; None if none is."""
    found, holds = _looked_at(kind)
    return _search(found, body, "", holds)


@functools.lru_cache(maxsize=32)
def _looked_at(kind: type) -> tuple[inspect.Type, frozenset[type]]:
    """(the type, the structs in which a tag may be missing)."""
    structs: dict[type, inspect.StructType] = {}
    root = inspect.type_info(kind)
    _collect(root, structs)
    holds: set[type] = set()
    while True:
        more = {
            one for one, info in structs.items() if any(_needs(field.type, holds) for field in info.fields)
        }
        if more <= holds:
            return root, frozenset(holds)
        holds |= more


def _collect(info: inspect.Type, structs: dict[type, inspect.StructType]) -> None:
    for one in _alternatives(info):
        if isinstance(one, inspect.StructType) and one.cls not in structs:
            structs[one.cls] = one
            for field in one.fields:
                _collect(field.type, structs)
        elif isinstance(one, inspect.CollectionType):
            _collect(one.item_type, structs)


def _needs(info: inspect.Type, holds: set[type] | frozenset[type]) -> bool:
    """Can a tag be missing at such a place, or below it?"""
    types = _alternatives(info)
    structs = [one for one in types if isinstance(one, inspect.StructType)]
    return (
        (len(structs) == 1 and structs[0].tag_field is not None)
        or any(one.cls in holds for one in structs)
        or any(isinstance(one, inspect.CollectionType) and _needs(one.item_type, holds) for one in types)
    )


def _search(info: inspect.Type, value: Any, path: str, holds: frozenset[type]) -> str | None:
    types = _alternatives(info)
    if isinstance(value, dict):
        structs = [one for one in types if isinstance(one, inspect.StructType)]
        for one in structs:
            if len(structs) == 1 and one.tag_field is not None and one.tag_field not in value:
                return f"{path}.{one.tag_field}" if path else one.tag_field
            chosen = one.tag_field is None or value.get(one.tag_field, one.tag) == one.tag
            if chosen and one.cls in holds:
                return _search_fields(one, value, path, holds)
    elif isinstance(value, list):
        for kind in types:
            if isinstance(kind, inspect.CollectionType) and _needs(kind.item_type, holds):
                items = enumerate(value)
                places = (_search(kind.item_type, item, f"{path}[{i}]", holds) for i, item in items)
                return next((place for place in places if place is not None), None)
    return None


def _search_fields(
    struct: inspect.StructType, value: dict[str, Any], path: str, holds: frozenset[type]
) -> str | None:
    for field in struct.fields:
        name = field.encode_name
        if isinstance(value.get(name), dict | list) and _needs(field.type, holds):
            place = _search(field.type, value[name], f"{path}.{name}" if path else name, holds)
            if place is not None:
                return place
    return None


def _alternatives(info: inspect.Type) -> tuple[inspect.Type, ...]:
    if isinstance(info, inspect.Metadata):
        return _alternatives(info.type)
    return info.types if isinstance(info, inspect.UnionType) else (info,)
