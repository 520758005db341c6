"""JSON that has a meaning everywhere: no NaN, no number past the range of a double."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

from luce.errors import quoted

__all__ = ["MAX_DIGITS", "strict_json"]

MAX_DIGITS = 309
"""Of the longest whole number in the range of a double."""


def strict_json(text: str) -> Any:
    """The value of JSON text. Of a name given twice in one object the last value counts.

    Raises:
        ValueError: no JSON, or a value that other readers would not take.
        RecursionError: nested too deep.
    """
    return json.loads(text, parse_constant=_no_constant, parse_float=_finite, parse_int=_whole)


def _whole(number: str) -> int:
    if len(number.lstrip("-")) > MAX_DIGITS:
        raise ValueError(f"{quoted(number)} is past the range of a double")
    return int(number)


def _finite(number: str) -> float:
    value = float(number)
    if math.isinf(value):
        raise ValueError(f"{quoted(number)} is past the range of a double")
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
