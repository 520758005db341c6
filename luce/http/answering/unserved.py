"""Fields that clients of this and of other servers send and this one does not serve: refused by name, never ignored.

A value that asks for what happens anyway is let through.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from luce.errors import RequestError

__all__ = ["Unserved", "not_supported", "without_unserved"]

Unserved = Mapping[str, tuple[tuple[Any, ...], str]]
"""By field: (the values that ask for nothing, what to do instead)."""


def without_unserved(
    body: Mapping[str, Any], unserved: Unserved, served: Collection[str] = ()
) -> dict[str, Any]:
    """The body without the fields of ``unserved``, all of which ask for nothing.

    Args:
        served: of these, the fields that are served with the values that are let through.

    Raises:
        RequestError: for the first field that asks for something, code ``unsupported_value``.
    """
    for field, value in body.items():
        if value is not None and (entry := unserved.get(field)) is not None:
            accepted, hint = entry
            if not any(_same(value, one) for one in accepted):
                raise not_supported(field, hint, only_this_value=bool(accepted))
    return {field: value for field, value in body.items() if field in served or field not in unserved}


def not_supported(field: str, hint: str = "", *, only_this_value: bool = False) -> RequestError:
    """The refusal of a field that is known."""
    message = f"{f'this value of {field}' if only_this_value else field} is not supported"
    return RequestError(f"{message}: {hint}" if hint else message, field=field, code="unsupported_value")


def _same(value: Any, accepted: Any) -> bool:
    return type(value) is type(accepted) and bool(value == accepted)
