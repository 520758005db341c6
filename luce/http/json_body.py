"""Request bodies: strict JSON into typed values, with errors that name the field.

msgspec refuses what Python's own reader lets pass (NaN, numbers past the range of a double, lone surrogates), but
for a body that is not JSON it gives a byte, not a field, and of a name that is given twice it keeps the last value.
Then the body is read once more, leniently and without its pictures, to find the place.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any, TypeVar

import msgspec

from luce.errors import RequestError, as_param, reason, shown_name
from luce.http.json_scan import MAX_DIGITS, Limits, Scan, scan
from luce.http.json_types import accepted_values, field_names, in_json_words, listed, shown, value_at
from luce.http.lone_tags import missing_tag

__all__ = ["FILE_LIMITS", "MAX_DEPTH", "decode_object", "typed"]

T = TypeVar("T")

MAX_DEPTH = 128
"""Levels of nesting in a body. Templates and schema compilers recurse over what is let in here."""

FILE_LIMITS = Limits(values=2_000_000)
"""For files that the user of this machine names."""

MAX_DIAGNOSED = 1 << 20
"""Bytes of a malformed body, pictures apart, that are searched for the field at fault."""

MAX_PATH = 300
"""Characters of the place of a fault."""

_AT = re.compile(r"^(?P<what>.*?)(?: - at `\$\.?(?P<path>.*)`)?$", re.DOTALL)
MAX_LISTED = 12
"""Fields that a message names."""
_UNKNOWN = re.compile(r"Object contains unknown field `(?P<name>.*)`$", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(?P<name>.*)`$", re.DOTALL)
_TAME = re.compile(r"\w{1,100}", re.ASCII)


def decode_object(
    body: bytes | bytearray, *, what: str = "the body", limits: Limits = FILE_LIMITS
) -> dict[str, Any]:
    """Strict JSON of one object as plain values.

    Args:
        what: what the text is, for errors.
        limits: what it may hold; looked at before it is parsed.

    Raises:
        RequestError: it holds too much, is not JSON or no object, nests too deep, gives a name twice, or holds a
            number or text that JSON cannot carry.
    """
    seen = scan(body, limits, what)
    if seen.long_number:
        fault = f"holds a whole number of over {MAX_DIGITS} digits"
        raise _found(seen, what) or RequestError(f"{what} {fault}")
    try:
        value = msgspec.json.decode(body)
    except RecursionError:
        raise RequestError(f"{what} nests deeper than {MAX_DEPTH} levels") from None
    except (msgspec.DecodeError, ValueError) as error:
        raise _found(seen, what) or RequestError(f"{what} is not valid JSON: {reason(error)}") from None
    members = _members(value, what)
    if members != seen.names:
        raise _twice(seen, what)
    if not isinstance(value, dict):
        raise RequestError(f"{what} must be a JSON object")
    return value


def typed(value: Any, kind: type[T]) -> T:
    """Plain values as ``kind``, strictly: no text for numbers, no numbers for booleans, no unknown fields.

    Raises:
        RequestError: names the first field that does not fit.
    """
    try:
        found = msgspec.convert(value, kind, strict=True)
    except msgspec.ValidationError as error:
        raise _field_error(error, value, kind) from None
    if place := missing_tag(kind, value):
        raise RequestError(f"{place} is missing", field=place)
    return found


def _field_error(error: msgspec.ValidationError, body: Any, kind: type) -> RequestError:
    """The message again from a copy with tame names and texts, so that nothing in it is the client's choice."""
    strange: list[str] = []
    try:
        msgspec.convert(_tamed(body, strange), kind, strict=True)
    except msgspec.ValidationError as tame:
        error = tame
    match = _AT.match(str(error))
    assert match is not None
    what, path = match["what"], (match["path"] or "").replace("[...]", "")
    if unknown := _UNKNOWN.match(what):
        name = strange[int(unknown["name"][1:])] if unknown["name"].startswith("?") else unknown["name"]
        said = f"{_join(path, shown_name(name))} is not a known field{_instead(name, kind, body, path)}"
        return RequestError(said, field=_join(path, as_param(name)), code="unknown_field")
    if missing := _MISSING.match(what):
        name = _join(path, missing["name"])
        return RequestError(f"{name} is missing", field=name)
    if what.startswith("Invalid"):
        what = f"invalid value {shown(value_at(body, path))}"
        if accepted := accepted_values(kind, body, path):
            what += f"; it must be {listed(map(shown, accepted))}"
    what = in_json_words(what[:1].lower() + what[1:])
    return RequestError(f"{path or 'the body'}: {what}", field=path or None)


def _instead(name: str, kind: type, body: Any, path: str) -> str:
    """What the client may have meant: a field of a like name, one of that name inside another, or one of a few."""
    names = field_names(kind, body, path)
    if close := get_close_matches(name[:100], names, n=1):
        return f"; did you mean {close[0]!r}?"
    for outer in names:
        if name in field_names(kind, body, _join(path, outer)):
            return f"; did you mean {_join(path, outer)}.{name}?"
    return f"; {path} has {listed(names, 'and')}" if path and len(names) <= MAX_LISTED else ""


def _tamed(value: Any, strange: list[str]) -> Any:
    """A copy that is as wrong as ``value``: names that are not plain are `?` and their place in ``strange``; texts
    that are not plain are as long, up to a length that no field takes."""
    if isinstance(value, str):
        return value if _TAME.fullmatch(value) else "?" * min(len(value), 1000)
    if isinstance(value, list):
        return [_tamed(item, strange) for item in value]
    if isinstance(value, dict):
        found = {}
        for name, item in value.items():
            if not _TAME.fullmatch(name):
                strange.append(name)
                name = f"?{len(strange) - 1}"
            found[name] = _tamed(item, strange)
        return found
    return value


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _members(value: Any, what: str) -> int:
    """How many members the objects in ``value`` have. Raises RequestError for what nests too deep."""
    members, level = 0, [value]
    for _ in range(MAX_DEPTH + 1):
        following: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                members += len(item)
                following += [child for child in item.values() if isinstance(child, dict | list)]
            elif isinstance(item, list):
                following += [child for child in item if isinstance(child, dict | list)]
        level = following
        if not level:
            return members
    raise RequestError(f"{what} nests deeper than {MAX_DEPTH} levels")


# -- the place of a fault -----------------------------------------------------------------------------------------


class _Pairs(dict[str, Any]):
    """An object with a name that is given twice."""

    twice: str


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    marked, seen = _Pairs(found), set[str]()
    marked.twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
    return marked


def _twice(seen: Scan, what: str) -> RequestError:
    for path, value in _walk(json.loads(seen.bare, object_pairs_hook=_pairs), ""):
        if isinstance(value, _Pairs):
            said = f"{_cut(_join(path, shown_name(value.twice)))} is given twice"
            return RequestError(said, field=_cut(_join(path, as_param(value.twice))), code="duplicate_field")
    raise AssertionError(f"{what} has fewer members than names, and none twice")


def _found(seen: Scan, what: str) -> RequestError | None:
    """The first value that Python can read and JSON cannot say, as an error.

    Python's reader holds the interpreter's lock, so a long body is not read again.
    """
    if len(seen.bare) > MAX_DIAGNOSED:
        return None
    try:
        for path, value in _walk(json.loads(seen.bare, parse_int=_integer), ""):
            if isinstance(value, float) and not math.isfinite(value):
                return _at(path or what, path, "the number is not finite, or too large")
            if isinstance(value, str) and not _encodable(value):
                return _at(
                    path or what, path, "the text holds half of a surrogate pair, which is no character"
                )
    except (ValueError, RecursionError):
        pass
    return None


def _at(place: str, path: str, fault: str) -> RequestError:
    return RequestError(f"{_cut(place)}: {fault}", field=_cut(path) or None)


def _integer(digits: str) -> int | float:
    return int(digits) if len(digits.lstrip("-")) <= MAX_DIGITS else math.inf


def _walk(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Every value and its place, from the outside in; names that are no text as values."""
    yield path, value
    if isinstance(value, dict):
        for name, child in value.items():
            if not _encodable(name):
                yield path, name
            else:
                yield from _walk(child, _join(path, as_param(name)))
    elif isinstance(value, list):
        for index, child in enumerate(value):
            yield from _walk(child, f"{path}[{index}]")


def _cut(path: str) -> str:
    return path if len(path) <= MAX_PATH else f"{path[: MAX_PATH // 2]}…{path[-MAX_PATH // 2 :]}"


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
