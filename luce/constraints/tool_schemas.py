"""The schema of a tool's arguments, taken apart by parameter."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import attrs
from llguidance import regex_to_lark

from luce.errors import RequestError, quoted

__all__ = ["Json", "Literal", "Root", "Text", "Value"]

_MOST = 64
"""Alternatives of one parameter, references followed, that are looked at."""
_REMARKS = {"description", "title", "default", "examples"}


@attrs.frozen
class Literal:
    """Exactly this text."""

    text: str


@attrs.frozen
class Text:
    """Any text that all these regular expressions match, in Lark's spelling."""

    patterns: tuple[str, ...] = ()


@attrs.frozen
class Json:
    """JSON by a schema."""

    schema: Mapping[str, Any]


Value = Literal | Text | Json


class Root:
    """Declared parameters of one tool.

    Args:
        schema: ``function.parameters``.
        strict: what the schema says and cannot be held to is refused; else left out.
        field: where it stands in the request.

    Raises:
        RequestError: it is no schema of an object, or a strict one that says what cannot be held to.
    """

    def __init__(self, schema: Mapping[str, Any], *, strict: bool, field: str) -> None:
        self.strict = strict
        self.field = field
        self._inner = _rebased(schema)
        top = self._resolved(schema)
        self.properties: Mapping[str, Any] = {}
        declared = top.get("properties")
        if isinstance(declared, Mapping):
            self.properties = declared
        wanted = top.get("required")
        self.required = frozenset(wanted if isinstance(wanted, list) else ())
        self.open = not self.properties and top.get("additionalProperties", not strict) is not False
        """Nothing is declared: parameters may have any name."""
        self.whole = {**schema, "type": "object"} if "$ref" not in schema else dict(schema)
        unknown = sorted(self.required.difference(self.properties)) if not self.open else []
        combined = [name for name in ("anyOf", "oneOf", "allOf", "not", "if") if name in top]
        kind = top.get("type", "object")
        if strict and kind != "object" and not (isinstance(kind, list) and "object" in kind):
            raise RequestError(f"{field} has the type {quoted(kind)}; arguments are an object", field=field)
        if strict and (unknown or combined):
            what = (
                f"requires {quoted(unknown[0])}, which it does not declare"
                if unknown
                else f"uses {combined[0]!r} at its top"
            )
            raise RequestError(f"{field} {what}; calls cannot be held to that", field=field)

    def alternatives(self, key: str) -> list[Value]:
        """What the parameter's value may be in the XML form."""
        found: list[Value] = []
        pointer = f"#/$defs/root/properties/{key.replace('~', '~0').replace('/', '~1')}"
        for schema, place in self._members(self.properties[key], pointer):
            found += self._values(schema, place)
        if Text() in found:
            return [Text()]
        unique: list[Value] = []
        for one in found:
            if one not in unique:
                unique.append(one)
        return unique or [Text()]

    def _members(self, schema: Any, pointer: str) -> Iterator[tuple[Mapping[str, Any], str]]:
        """The schema or what it is a union of, references followed, with where each stands."""
        waiting, looked = [(schema, pointer)], 0
        while waiting:
            one, place = waiting.pop(0)
            looked += 1
            if looked > _MOST:
                raise RequestError(
                    f"{self.field}: a parameter has more than {_MOST} alternatives", field=self.field
                )
            if not isinstance(one, Mapping):
                one = {}
            reference = one.get("$ref")
            if isinstance(reference, str) and not set(one) - {"$ref", *_REMARKS}:
                target, where = self._look_up(reference)
                waiting.append((target, where))
                continue
            for union in ("anyOf", "oneOf"):
                members = one.get(union)
                if isinstance(members, list) and not set(one) - {union, *_REMARKS}:
                    waiting += [(member, f"{place}/{union}/{index}") for index, member in enumerate(members)]
                    break
            else:
                yield one, place

    def _values(self, schema: Mapping[str, Any], pointer: str) -> Iterator[Value]:
        given = [schema["const"]] if "const" in schema else schema.get("enum")
        if isinstance(given, list) and given and any(isinstance(one, str) for one in given):
            yield from (Literal(one) for one in given if isinstance(one, str))
            rest = [one for one in given if not isinstance(one, str)]
            if rest:
                yield Json({"enum": rest})
            return
        kinds = schema.get("type")
        listed = [kinds] if isinstance(kinds, str) else kinds
        if not isinstance(listed, list):
            structured = {"properties", "items", "prefixItems", "allOf", "$ref", "enum", "const", "not"}
            if not structured.intersection(schema):
                yield Text()
                return
            listed = []
        if "string" in listed:
            yield _text_pattern(schema)
            listed = [one for one in listed if one != "string"]
            if listed:
                yield Json({"$ref": pointer, "type": listed, "$defs": {"root": self._inner}})
            return
        yield Json({"$ref": pointer, "$defs": {"root": self._inner}})

    def _resolved(self, schema: Mapping[str, Any]) -> Mapping[str, Any]:
        """The top of the schema, references followed."""
        self._schema = schema
        top: Any = schema
        for _ in range(_MOST):
            if not isinstance(top, Mapping):
                break
            if not isinstance(top.get("$ref"), str):
                return top
            top, _ = self._look_up(top["$ref"])
        raise RequestError(f"{self.field} must be the schema of an object", field=self.field)

    def _look_up(self, reference: str) -> tuple[Any, str]:
        found: Any = self._schema
        if not reference.startswith("#"):
            raise RequestError(
                f"{self.field}: {quoted(reference)} is no reference within the schema", field=self.field
            )
        for step in reference[1:].split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            if isinstance(found, Mapping) and name in found:
                found = found[name]
            elif isinstance(found, list) and name.isdecimal() and int(name) < len(found):
                found = found[int(name)]
            else:
                raise RequestError(f"{self.field}: {quoted(reference)} refers to nothing", field=self.field)
        return found, "#/$defs/root" + reference[1:]


def _rebased(schema: Any, depth: int = 0) -> Any:
    """The schema with its references as they are when it stands at ``#/$defs/root``."""
    if isinstance(schema, Mapping):
        return {
            key: "#/$defs/root" + value[1:]
            if key == "$ref" and isinstance(value, str) and value.startswith("#")
            else _rebased(value, depth + 1)
            for key, value in schema.items()
        }
    if isinstance(schema, list):
        return [_rebased(one, depth + 1) for one in schema]
    return schema


def _text_pattern(schema: Mapping[str, Any]) -> Text:
    """Text of a string schema; formats are remarks, as the standard has it."""
    least, most = schema.get("minLength"), schema.get("maxLength")
    pattern = schema.get("pattern")
    parts = []
    if isinstance(least, int) or isinstance(most, int):
        parts.append(f"/(?s:.{{{least or 0},{most if isinstance(most, int) else ''}}})/")
    if isinstance(pattern, str):
        body = pattern.removeprefix("^")
        head = "" if body != pattern else "(?s:.*)"
        ends = body.endswith("$") and not body.endswith("\\$")
        tail = "" if ends else "(?s:.*)"
        spelled = regex_to_lark(f"{head}({body[:-1] if ends else body}){tail}", use_ascii="dw")
        parts.append(f"/{spelled}/")
    return Text(tuple(parts))
