"""What clients of the Responses API send and this server does not serve: refused by name, never ignored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from luce.errors import RequestError, quoted
from luce.http.answering.unserved import Unserved

__all__ = ["UNSERVED", "refuse_by_kind"]

_STATELESS = "this server keeps nothing of earlier answers; send the whole conversation as input"

UNSERVED: Unserved = {
    "previous_response_id": ((), _STATELESS),
    "conversation": ((), _STATELESS),
    "prompt": ((), "this server has no prompt templates; send instructions and input"),
    "background": ((False,), "answers end with their connection; use stream"),
    "background_options": ((), ""),
    "truncation": (("disabled",), 'only "disabled": input that does not fit is refused'),
    "context_management": (([],), "the input is taken as it is sent"),
    "moderation": ((), ""),
    "access_programs": ((), ""),
    "image": ((), ""),
}

_ITEMS = {
    "item_reference": _STATELESS,
    "compaction": "it can be read by the server alone that wrote it",
}


def refuse_by_kind(body: Mapping[str, Any]) -> None:
    """Tools that OpenAI's servers run and items that refer to what they keep, before their fields are looked at, which
    are others for each of them."""
    tools = body.get("tools")
    for index, tool in enumerate(tools if isinstance(tools, list) else ()):
        kind = tool.get("type") if isinstance(tool, dict) else None
        if isinstance(kind, str) and kind != "function":
            field = f"tools[{index}].type"
            said = f"{field}: tools of the type {quoted(kind)} are not supported; declare functions"
            raise RequestError(said, field=field, code="unsupported_value")
    items = body.get("input")
    for index, item in enumerate(items if isinstance(items, list) else ()):
        kind = item.get("type") if isinstance(item, dict) else None
        if isinstance(kind, str) and kind in _ITEMS:
            raise RequestError(
                f"input[{index}]: {kind} is not supported: {_ITEMS[kind]}",
                field=f"input[{index}].type",
                code="unsupported_value",
            )
