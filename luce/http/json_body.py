"""Request bodies: strict JSON into typed values, with errors that name the field.

msgspec refuses what Python's own reader lets pass (NaN, numbers past the range of a double, lone surrogates), but
for a body that is not JSON it gives a byte, not a field. Then the body is read once more, leniently, to find it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any, TypeVar

import msgspec

from luce.errors import RequestError
from luce.http.json_types import accepted_values, field_names, in_json_words, listed, shown, value_at

__all__ = ["MAX_DEPTH", "decode_json", "decode_object", "typed"]

T = TypeVar("T")

MAX_DEPTH = 128
"""Levels of nesting in a body. Templates and schema compilers recurse over what is let in here."""

MAX_VALUES = 500_000
"""Values of a body, counted by the separators in it, those within text included."""

MAX_DIAGNOSED = 1 << 20
"""Bytes of a malformed body that are searched for the field at fault."""

_AT = re.compile(r"^(?P<what>.*?)(?: - at `\$\.?(?P<path>.*)`)?$", re.DOTALL)
_UNKNOWN = re.compile(r"Object contains unknown field `(?P<name>.*)`$", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(?P<name>.*)`$", re.DOTALL)


def decode_json(text: bytes | str, *, what: str = "the body", field: str | None = None) -> Any:
    """Strict JSON as plain values.

    Raises:
        RequestError: it is not JSON, nests too deep, or holds a number or text that JSON cannot carry.
    """
    _refuse_swarms(text, what, field)
    try:
        value = msgspec.json.decode(text)
    except RecursionError:
        raise RequestError(f"{what} nests deeper than {MAX_DEPTH} levels", field=field) from None
    except (msgspec.DecodeError, ValueError) as error:
        found = _find_fault(text)
        if found is not None:
            path, fault = found
            raise RequestError(f"{path or what}: {fault}", field=path or field) from None
        raise RequestError(f"{what} is not valid JSON: {error}", field=field) from None
    if _deeper_than(value, MAX_DEPTH):
        raise RequestError(f"{what} nests deeper than {MAX_DEPTH} levels", field=field)
    return value


def _refuse_swarms(text: bytes | str, what: str, field: str | None) -> None:
    """Millions of tiny values would hold a worker for minutes and gigabytes; separators count fast."""
    data = text if isinstance(text, bytes) else text.encode("utf-8", "replace")
    if sum(data.count(mark) for mark in (b"[", b"{", b",")) > MAX_VALUES:
        raise RequestError(f"{what} holds over {MAX_VALUES} values", field=field)


def decode_object(body: bytes, *, what: str = "the body") -> dict[str, Any]:
    """A request body, which must be one JSON object. Raises as :func:`decode_json`."""
    value = decode_json(body, what=what)
    if not isinstance(value, dict):
        raise RequestError(f"{what} must be a JSON object")
    return value


def typed(value: Any, kind: type[T]) -> T:
    """Plain values as ``kind``, strictly: no text for numbers, no numbers for booleans, no unknown fields.

    Raises:
        RequestError: names the first field that does not fit.
    """
    try:
        return msgspec.convert(value, kind, strict=True)
    except msgspec.ValidationError as error:
        raise _field_error(str(error), value, kind) from None


def _field_error(text: str, body: Any, kind: type) -> RequestError:
    match = _AT.match(text)
    assert match is not None
    what, path = match["what"], (match["path"] or "").replace("[...]", "")
    if unknown := _UNKNOWN.match(what):
        name = _join(path, unknown["name"][:100])
        close = get_close_matches(unknown["name"][:100], field_names(kind, body, path), n=1)
        meant = f"; did you mean {close[0]!r}?" if close else ""
        return RequestError(f"{name} is not a known field{meant}", field=name, code="unknown_field")
    if missing := _MISSING.match(what):
        name = _join(path, missing["name"])
        return RequestError(f"{name} is missing", field=name)
    if what.startswith("Invalid"):
        what = f"invalid value {shown(value_at(body, path))}"
        if accepted := accepted_values(kind, body, path):
            what += f"; it must be {listed(map(shown, accepted))}"
    what = in_json_words(what[:1].lower() + what[1:])
    return RequestError(f"{path or 'the body'}: {what}", field=path or None)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _deeper_than(value: Any, limit: int) -> bool:
    level = [value]
    for _ in range(limit + 1):
        level = [
            child
            for item in level
            if isinstance(item, dict | list)
            for child in (item.values() if isinstance(item, dict) else item)
            if isinstance(child, dict | list)
        ]
        if not level:
            return False
    return True


def _find_fault(text: bytes | str) -> tuple[str, str] | None:
    """(path, what is wrong) of the first value that Python can read and JSON cannot say.

    Python's reader holds the interpreter's lock, so a long body is not read again.
    """
    if len(text) > MAX_DIAGNOSED:
        return None
    try:
        for path, leaf in _leaves(json.loads(text), ""):
            if isinstance(leaf, float) and not math.isfinite(leaf):
                return path, "the number is not finite, or too large"
            if isinstance(leaf, str) and not _encodable(leaf):
                return path, "the text holds half of a surrogate pair, which is no character"
    except (ValueError, RecursionError):
        pass
    return None


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, child in value.items():
            if not _encodable(key):
                yield path, key
            else:
                yield from _leaves(child, _join(path, key[:100]))
    elif isinstance(value, list):
        for index, child in enumerate(value):
            yield from _leaves(child, f"{path}[{index}]")
    else:
        yield path, value


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
