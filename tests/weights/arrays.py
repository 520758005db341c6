"""All arrays of canonical weights by path, for comparing two loads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs
import numpy as np

__all__ = ["distinct_bytes", "named_arrays", "owned_floats", "same_bits"]


def named_arrays(value: Any, name: str = "weights") -> Iterator[tuple[str, np.ndarray]]:
    """(path, array) over nested attrs classes and tuples."""
    if isinstance(value, np.ndarray):
        yield name, value
    elif isinstance(value, tuple):
        for index, entry in enumerate(value):
            yield from named_arrays(entry, f"{name}[{index}]")
    elif value is not None:
        for field in attrs.fields(type(value)):
            yield from named_arrays(getattr(value, field.name), f"{name}.{field.name}")


def distinct_bytes(value: Any) -> int:
    """Bytes of all arrays, one that is used twice counted once."""
    return sum({id(array): array.nbytes for _, array in named_arrays(value)}.values())


def same_bits(one: Any, other: Any) -> list[str]:
    """Paths whose shape or bits differ; the trees must have the same arrays."""
    left, right = dict(named_arrays(one)), dict(named_arrays(other))
    assert left.keys() == right.keys()
    return [
        name
        for name, array in left.items()
        if array.shape != right[name].shape or array.tobytes() != right[name].tobytes()
    ]


def owned_floats(value: Any, seen: set[int] | None = None) -> dict[int, int]:
    """Bytes of every float array that an object graph owns, by identity of the owner of its memory."""
    seen = set() if seen is None else seen
    if id(value) in seen or isinstance(value, str | bytes | int | float | type | None):
        return {}
    seen.add(id(value))
    if isinstance(value, np.ndarray):
        while isinstance(value.base, np.ndarray):
            value = value.base
        return {id(value): value.nbytes} if value.dtype.kind == "f" else {}
    if isinstance(value, dict):
        members = list(value.values())
    elif isinstance(value, list | tuple):
        members = list(value)
    else:
        names = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
        members = [getattr(value, name) for name in names if hasattr(value, name) and name != "__weakref__"]
        members += list(getattr(value, "__dict__", {}).values())
    found: dict[int, int] = {}
    for member in members:
        found |= owned_floats(member, seen)
    return found
