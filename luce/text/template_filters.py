"""Filters, tests and methods that chat templates may use, each charging for its work before it runs.

Only what is listed exists: of Jinja's own filters those are missing that can make large texts from small ones
(``center``, ``batch``, …), are not repeatable (``random``), or have no use in prompts.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sized
from typing import Any

from jinja2 import pass_context
from jinja2.exceptions import SecurityError
from jinja2.filters import FILTERS as JINJA_FILTERS
from jinja2.runtime import Context
from jinja2.tests import TESTS as JINJA_TESTS

from luce.text.template_budget import CHARACTERS, charge, charge_copy, measure

__all__ = ["FILTERS", "METHODS", "TESTS", "before_method", "percent"]

Charge = Callable[..., None]

_WIDE = re.compile(r"%[^a-zA-Z%]*(\d{4}|\*)")
_WIDE_FIELD = re.compile(r"\d{4}|\{[^{}]*\{")


def _length(value: object, *_: object, **__: object) -> None:
    if isinstance(value, str):
        charge_copy(len(value))
    elif isinstance(value, Sized):
        charge_copy(len(value), text=False)
    else:
        charge(1)


def _constant(*_: object, **__: object) -> None:
    charge(1)


def _leaves(value: object, *arguments: object, **named: object) -> None:
    for item in (value, *arguments, *named.values()):
        measure(item)


def _escaped(value: object, *_: object) -> None:
    measure(value)
    charge_copy(5 * len(str(value)))


def _replaced(value: object, old: object = "", new: object = "", count: object = None) -> None:
    _leaves(value, old, new)
    text, old, new = str(value), str(old), str(new)
    times = len(text) + 1 if not old else text.count(old)
    charge_copy(len(text) + times * len(new))


def _joined(value: object, separator: object = "", attribute: object = None) -> None:
    if not isinstance(value, Sized):
        raise SecurityError("join: needs a list")
    measure(value)
    charge_copy(len(value) * len(str(separator)))


def _indented(value: object, width: object = 4, first: object = False, blank: object = False) -> None:
    measure(value)
    wide = len(width) if isinstance(width, str) else width
    if not isinstance(wide, int) or wide > CHARACTERS:
        raise SecurityError("indent: the width is too large")
    charge_copy(len(str(value)) + (1 + str(value).count("\n")) * wide)


def _rounded(value: object, precision: object = 0, method: object = "common") -> None:
    if not isinstance(precision, int) or abs(precision) > CHARACTERS:
        raise SecurityError("round: the precision is too large")
    charge(1)


def _summed(value: object, attribute: object = None, start: object = 0) -> None:
    if not isinstance(start, int | float):
        raise SecurityError("sum: only numbers can be summed")
    measure(value)


def _not_text(value: object, *_: object) -> None:
    if isinstance(value, str):
        raise SecurityError("reverse: a text cannot be reversed")
    _length(value)


def _formatted(value: object, *arguments: object, **named: object) -> None:
    if _WIDE.search(str(value)):
        raise SecurityError("format: the width is too large")
    _leaves(value, *arguments, **named)
    charge_copy(len(str(value)) + 1000 * str(value).count("%"))


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As in transformers: no HTML escapes, ``", "`` and ``": "``, characters as they are."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _jsoned(
    value: object,
    ensure_ascii: object = False,
    indent: object = None,
    separators: object = None,
    sort_keys: object = False,
) -> None:
    if indent is not None and not (isinstance(indent, int) and 0 <= indent <= 16):
        raise SecurityError("tojson: indent must be 0 to 16")
    if separators is not None and len(str(separators)) > CHARACTERS:
        raise SecurityError("tojson: the separators are too long")
    measure(value)


def percent(left: str, right: Any) -> object:
    """``left % right`` with a bound on the result."""
    if isinstance(right, tuple):
        _formatted(left, *right)
    else:
        _formatted(left, right)
    return left % right


_CHARGES: dict[str, Charge] = {
    **dict.fromkeys(("default", "d", "length", "count", "abs", "float", "int"), _constant),
    **dict.fromkeys(("first", "last", "items", "attr"), _constant),
    **dict.fromkeys(("trim", "upper", "lower", "capitalize", "title", "list", "truncate"), _length),
    **dict.fromkeys(("map", "select", "reject", "selectattr", "rejectattr", "wordcount"), _length),
    **dict.fromkeys(("string", "safe", "dictsort", "sort", "unique", "min", "max", "groupby"), _leaves),
    **dict.fromkeys(("escape", "e", "forceescape"), _escaped),
    "replace": _replaced,
    "join": _joined,
    "indent": _indented,
    "sum": _summed,
    "round": _rounded,
    "reverse": _not_text,
    "format": _formatted,
    "tojson": _jsoned,
}


def _metered(function: Any, before: Charge) -> Callable[..., Any]:
    """The filter or test, charging first. Lazy inputs become lists, so that their length is known."""
    passes = getattr(function, "jinja_pass_arg", None)
    passes = None if passes is None else passes.name

    @pass_context
    @functools.wraps(function)
    def run(context: Context, value: object, *arguments: object, **named: object) -> object:
        if isinstance(value, Iterable) and not isinstance(value, Sized):
            value = _drained(value)
        for argument in (*arguments, *named.values()):
            measure(argument)
        before(value, *arguments, **named)
        if passes == "context":
            return function(context, value, *arguments, **named)
        if passes == "environment":
            return function(context.environment, value, *arguments, **named)
        if passes == "eval_context":
            return function(context.eval_ctx, value, *arguments, **named)
        return function(value, *arguments, **named)

    return run


def _drained(values: Iterable[object]) -> list[object]:
    items = []
    for value in values:
        charge(1)
        items.append(value)
    return items


FILTERS = {
    name: _metered(_tojson if name == "tojson" else JINJA_FILTERS[name], before)
    for name, before in _CHARGES.items()
}

_COMPARING = ("eq", "equalto", "==", "ne", "!=", "lt", "lessthan", "<", "le", "<=", "gt", "greaterthan")
TESTS = {
    **JINJA_TESTS,
    **{name: _metered(JINJA_TESTS[name], _leaves) for name in (*_COMPARING, ">", "ge", ">=")},
    **{name: _metered(JINJA_TESTS[name], _leaves) for name in ("in", "upper", "lower", "filter", "test")},
}


def _str_join(text: str, values: Iterable[object]) -> None:
    _joined(values, text)


def _str_format(text: str, *arguments: object, **named: object) -> None:
    if _WIDE_FIELD.search(text):
        raise SecurityError("format: the width is too large")
    _leaves(text, *arguments, **named)
    charge_copy(len(text) + 1000 * text.count("{"))


def _split(text: str, *_: object, **__: object) -> None:
    charge_copy(len(text), text=False)


def _looked_up(value: object, *arguments: object) -> None:
    _leaves(None, *arguments)


_LINEAR_METHODS = (
    *("strip", "lstrip", "rstrip", "removeprefix", "removesuffix", "startswith", "endswith"),
    *("find", "rfind", "index", "rindex", "count"),
    *("lower", "upper", "title", "capitalize", "swapcase", "casefold"),
    *("isdigit", "isalpha", "isalnum", "isnumeric", "isspace", "isupper", "islower"),
)
METHODS: Mapping[type, Mapping[str, Charge]] = {
    str: {
        **dict.fromkeys(_LINEAR_METHODS, _length),
        **dict.fromkeys(("split", "rsplit", "splitlines", "partition", "rpartition"), _split),
        "join": _str_join,
        "replace": _replaced,
        "format": _str_format,
    },
    list: dict.fromkeys(("index", "count"), _leaves),
    tuple: dict.fromkeys(("index", "count"), _leaves),
    dict: {"get": _looked_up, **dict.fromkeys(("items", "keys", "values"), _constant)},
}
"""Methods of plain values by type, with what each charges."""


def before_method(owner: object, name: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
    """Charge for a method of a plain value.

    Raises:
        SecurityError: the method is not one that templates may call.
    """
    for kind, methods in METHODS.items():
        if isinstance(owner, kind) and name in methods:
            methods[name](owner, *arguments, **named)
            return
    raise SecurityError(f"a chat template may not call {type(owner).__name__}.{name}")
