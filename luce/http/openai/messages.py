"""Messages of a request as the chat template reads them.

The caller's own objects are kept, key order included, because templates print some of them (tools above all); only
what OpenAI's form and the templates' form say differently is changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from luce.errors import RequestError
from luce.http.json_body import decode_json

__all__ = ["template_messages"]

_DROPPED = ("refusal", "audio", "function_call", "annotations")


def template_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Messages, already checked against :class:`ChatRequest`, for the template.

    * null means absent;
    * ``developer`` is OpenAI's newer word for ``system``;
    * a picture is ``{"type": "image"}``, its bytes travel apart;
    * ``reasoning`` is another name for ``reasoning_content``;
    * the arguments of a tool call are an object, not text.

    Raises:
        RequestError: names the message's field.
    """
    if not messages:
        raise RequestError("messages must hold at least one message", field="messages")
    return [_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def _message(message: Mapping[str, Any], field: str) -> dict[str, Any]:
    result = {key: value for key, value in message.items() if value is not None and key not in _DROPPED}
    if result["role"] == "developer":
        result["role"] = "system"
    if "reasoning" in result:
        reasoning = result.pop("reasoning")
        if result.setdefault("reasoning_content", reasoning) != reasoning:
            raise RequestError(
                f"{field}: reasoning and reasoning_content differ; send one of them",
                field=f"{field}.reasoning",
            )
    content = result.get("content")
    if content is None and result["role"] != "assistant":
        raise RequestError(f"{field}.content is missing", field=f"{field}.content")
    if isinstance(content, list):
        result["content"] = [_part(part) for part in content]
    if "tool_calls" in result:
        result["tool_calls"] = [
            _tool_call(call, f"{field}.tool_calls[{index}]")
            for index, call in enumerate(result["tool_calls"])
        ]
    return result


def _part(part: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "image"} if part["type"] == "image_url" else dict(part)


def _tool_call(call: Mapping[str, Any], field: str) -> dict[str, Any]:
    result = {key: value for key, value in call.items() if value is not None and key != "index"}
    result.setdefault("type", "function")
    function = dict(call["function"])
    arguments = function.get("arguments")
    if arguments is None or arguments == "":
        arguments = {}
    elif isinstance(arguments, str):
        where = f"{field}.function.arguments"
        arguments = decode_json(arguments, what=where, field=where)
        if not isinstance(arguments, dict):
            raise RequestError(f"{where} must hold a JSON object", field=where)
    function["arguments"] = arguments
    result["function"] = function
    return result
