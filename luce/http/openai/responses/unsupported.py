"""What clients of the Responses API send and this server does not serve: refused by name, never ignored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from luce.errors import RequestError, quoted
from luce.http.openai.responses.request import ResponsesRequest

__all__ = ["refuse_by_kind", "refuse_unsupported"]

_STATELESS = "this server keeps nothing of earlier answers; send the whole conversation as input"

_FIELDS: dict[str, tuple[tuple[Any, ...], str]] = {
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


def refuse_unsupported(request: ResponsesRequest) -> None:
    """Raises RequestError for the first field whose value asks for something that is not served."""
    for field, (accepted, hint) in _FIELDS.items():
        value = getattr(request, field)
        if value is not None and not any(type(value) is type(one) and value == one for one in accepted):
            said = f"{'this value of ' if accepted else ''}{field} is not supported"
            raise _refused(field, f"{said}: {hint}" if hint else said)
    if request.stream_options is not None and not request.stream:
        raise RequestError("stream_options needs stream to be true", field="stream_options")
    if request.metadata is not None and len(request.metadata) > 16:
        raise RequestError(
            f"metadata holds {len(request.metadata)} pairs; at most 16 are taken", field="metadata"
        )


def refuse_by_kind(body: Mapping[str, Any]) -> None:
    """Tools that OpenAI's servers run and items that refer to what they keep, before their fields are looked at, which
    are others for each of them."""
    tools = body.get("tools")
    for index, tool in enumerate(tools if isinstance(tools, list) else ()):
        kind = tool.get("type") if isinstance(tool, dict) else None
        if isinstance(kind, str) and kind != "function":
            field = f"tools[{index}].type"
            said = f"{field}: tools of the type {quoted(kind)} are not supported; declare functions"
            raise _refused(field, said)
    items = body.get("input")
    for index, item in enumerate(items if isinstance(items, list) else ()):
        kind = item.get("type") if isinstance(item, dict) else None
        if isinstance(kind, str) and kind in _ITEMS:
            raise _refused(f"input[{index}].type", f"input[{index}]: {kind} is not supported: {_ITEMS[kind]}")


def _refused(field: str, message: str) -> RequestError:
    return RequestError(message, field=field, code="unsupported_value")
