"""Names that clients choose (fields, addresses, methods, query parameters), as messages and ``param`` show them."""

from __future__ import annotations

import re

from luce.errors import quoted

__all__ = ["as_param", "shown_name"]

_PLAIN = re.compile(r"[\w./:@+-]{1,100}", re.ASCII)


def shown_name(name: str) -> str:
    """As it is, if it is short and plain; else quoted, printable and cut."""
    return name if _PLAIN.fullmatch(name) else quoted(name)


def as_param(name: str) -> str:
    """For the ``param`` of an error: printable and cut, without quotes around it."""
    return name if _PLAIN.fullmatch(name) else quoted(name)[1:-1]
