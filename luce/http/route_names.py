"""Routes as documents, messages, the log and metrics write them."""

from __future__ import annotations

import re

__all__ = ["address"]

_VARIABLE = re.compile(r"<(?:[^:>]*:)?([^>]*)>")


def address(rule: str) -> str:
    """A route of the framework as `/v1/models/{name}`."""
    return _VARIABLE.sub(r"{\1}", rule)
