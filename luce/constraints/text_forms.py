"""Forms of an answer's text as grammars in llguidance's own form."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from llguidance import LLMatcher
from llguidance.gbnf_to_lark import any_to_lark

from luce.constraints.wish import TextForm, TextKind
from luce.errors import RequestError, quoted, reason

__all__ = ["json_options", "quote", "text_grammar"]

WHITESPACE = r"\n[ ]{0,16}|[ ]"
"""Between the parts of JSON, besides nothing: one blank, or a line end and an indentation. A model may not fill its
answer with blanks."""
MAX_CHOICES = 1024
MAX_DEPTH = 64
"""Of brackets in a grammar in llama.cpp's notation."""


def text_grammar(form: TextForm) -> dict[str, Any]:
    """The grammar of the whole text.

    Raises:
        RequestError: the value is not of the form's kind; names its field. Grammars are only compiled later.
    """
    kind, value, field = form.kind, form.value, form.field
    if kind is TextKind.JSON_OBJECT:
        return {"json_schema": json_options({"type": "object"})}
    if kind is TextKind.JSON_SCHEMA:
        if isinstance(value, bool):
            value = {} if value else {"not": {}}
        if not isinstance(value, Mapping):
            raise _wrong(field, "a JSON schema, an object", value)
        return {"json_schema": json_options(value)}
    if kind is TextKind.CHOICE:
        return {"lark_grammar": f"start: {_choices(value, field)}"}
    if not isinstance(value, str) or not value:
        raise _wrong(field, "a string that is not empty", value)
    if kind is TextKind.REGEX:
        return _library(LLMatcher.grammar_from_regex(value))
    return {"lark_grammar": value if kind is TextKind.LARK else _lark(value, field)}


def json_options(schema: Mapping[str, Any], *, lenient: bool = False) -> dict[str, Any]:
    """The schema with how its JSON is to be written.

    Args:
        lenient: keywords that cannot be held to are left out, not refused.
    """
    own = {"whitespace_pattern": WHITESPACE, "lenient": lenient}
    return {**{key: value for key, value in schema.items() if key != "x-guidance"}, "x-guidance": own}


def quote(text: str) -> str:
    """A literal in Lark."""
    return json.dumps(text, ensure_ascii=False)


def _library(text: str) -> dict[str, Any]:
    grammar: dict[str, Any] = json.loads(text)["grammars"][0]
    return {key: value for key, value in grammar.items() if key != "name" and value is not None}


def _choices(value: object, field: str) -> str:
    if isinstance(value, str) or not isinstance(value, Sequence) or not value:
        raise _wrong(field, "a list of strings that is not empty", value)
    if len(value) > MAX_CHOICES:
        raise RequestError(f"{field} has {len(value)} choices; at most {MAX_CHOICES} are taken", field=field)
    for place, one in enumerate(value):
        if not isinstance(one, str) or not one:
            raise _wrong(f"{field}[{place}]", "a string that is not empty", one)
    return " | ".join(map(quote, value))


def _lark(text: str, field: str) -> str:
    depth = most = 0
    for mark in re.finditer(r'"(?:[^"\\]|\\.)*"|\[(?:[^\]\\]|\\.)*\]|[()]', text):
        depth += {"(": 1, ")": -1}.get(mark.group(), 0)
        most = max(most, depth)
    if most > MAX_DEPTH:
        raise RequestError(f"{field} nests {most} brackets; at most {MAX_DEPTH} are taken", field=field)
    try:
        return any_to_lark(text)
    except Exception as error:
        raise RequestError(f"{field}: {reason(error)}", field=field) from None


def _wrong(field: str, wanted: str, value: object) -> RequestError:
    return RequestError(f"{field} must be {wanted}, not {quoted(value)}", field=field)
