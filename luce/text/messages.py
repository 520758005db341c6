"""Chat messages as clients send them, brought to the one form that chat templates expect.

Rules, beside checking shapes (every fault is a 400 that names the field):

- ``developer`` is rendered as ``system``. Whether a system message may stand there is the template's decision.
- A list of text parts becomes one string, nothing added between the parts. With pictures in it the list stays a
  list of ``{"type": "text"}`` and ``{"type": "image"}`` parts, neighbouring texts joined.
- ``content`` null or absent is allowed for the assistant alone and means "".
- ``tool_calls[].function.arguments`` given as a JSON string is decoded; "" and null mean no arguments.
- ``reasoning`` is taken for ``reasoning_content`` where that is absent. Other keys pass to the template as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import attrs

from luce.errors import RequestError
from luce.text.strict_json import strict_json
from luce.text.tokenizer import check_unicode

__all__ = ["Conversation", "ImageReference", "normalise", "plain_json"]

ROLES = ("system", "developer", "user", "assistant", "tool")
_TEXT_PARTS = ("text", "input_text", "output_text")
_IMAGE_PARTS = ("image", "image_url", "input_image")
MAX_DEPTH = 64
"""Deepest nesting of lists and objects in a message."""


@attrs.frozen
class ImageReference:
    """Where a picture stands in the request."""

    field: str
    """For errors, as in ``messages[0].content[1].image_url``."""
    url: str | None
    """Its URL; None for a part that names none, whose picture the caller has by other means."""
    detail: str | None = None
    """OpenAI's ``detail`` as sent."""


@attrs.frozen(eq=False)
class Conversation:
    """Messages for a template, and their pictures in order over all turns."""

    messages: tuple[dict[str, Any], ...]
    images: tuple[ImageReference, ...]


def normalise(messages: Sequence[Mapping[str, Any]]) -> Conversation:
    """Check and normalise messages.

    Raises:
        RequestError: names the field at fault.
    """
    given: object = messages
    if not isinstance(given, Sequence) or isinstance(given, str):
        _refuse("messages", "must be a list of messages")
    if not messages:
        _refuse("messages", "must hold at least one message")
    images: list[ImageReference] = []
    return Conversation(
        tuple(_message(message, f"messages[{i}]", images) for i, message in enumerate(messages)),
        tuple(images),
    )


def _message(message: object, field: str, images: list[ImageReference]) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        _refuse(field, "must be an object with a role and content")
    role = message.get("role")
    if role not in ROLES:
        _refuse(f"{field}.role", f"must be one of {', '.join(ROLES)}")
    found: dict[str, Any] = {
        key: plain_json(value, f"{field}.{key}")
        for key, value in message.items()
        if key not in ("role", "content", "tool_calls", "reasoning", "reasoning_content")
    }
    found["role"] = "system" if role == "developer" else role
    found["content"] = _content(message.get("content"), f"{field}.content", role, images)
    reasoning = message.get("reasoning_content")
    name = "reasoning_content"
    if reasoning is None:
        reasoning, name = message.get("reasoning"), "reasoning"
    if reasoning is not None:
        found["reasoning_content"] = _text(reasoning, f"{field}.{name}")
    calls = message.get("tool_calls")
    if calls is not None:
        if not isinstance(calls, Sequence) or isinstance(calls, str):
            _refuse(f"{field}.tool_calls", "must be a list")
        if calls and role != "assistant":
            _refuse(f"{field}.tool_calls", "only an assistant message can have tool calls")
        if calls:
            found["tool_calls"] = [_call(call, f"{field}.tool_calls[{j}]") for j, call in enumerate(calls)]
    return found


def _content(
    content: object, field: str, role: str, images: list[ImageReference]
) -> str | list[dict[str, str]]:
    if content is None and role == "assistant":
        return ""
    if isinstance(content, str):
        return _text(content, field)
    if not isinstance(content, Sequence):
        _refuse(field, "must be a string or a list of parts")
    parts: list[dict[str, str]] = []
    for j, part in enumerate(content):
        where = f"{field}[{j}]"
        if not isinstance(part, Mapping):
            _refuse(where, "must be an object with a type")
        kind = part.get("type")
        if kind in _TEXT_PARTS:
            text = _text(part.get("text"), f"{where}.text")
            if parts and parts[-1]["type"] == "text":
                parts[-1]["text"] += text
            else:
                parts.append({"type": "text", "text": text})
        elif kind in _IMAGE_PARTS:
            images.append(_image(part, where))
            parts.append({"type": "image"})
        else:
            _refuse(f"{where}.type", "must be text or image_url")
    if all(part["type"] == "text" for part in parts):
        return "".join(part["text"] for part in parts)
    return parts


def _image(part: Mapping[str, Any], field: str) -> ImageReference:
    value = part.get("image_url")
    detail = part.get("detail")
    if isinstance(value, Mapping):
        detail = value.get("detail", detail)
        url, field = value.get("url"), f"{field}.image_url.url"
    else:
        url, field = value, f"{field}.image_url"
    if detail is not None:
        detail = _text(detail, field.removesuffix(".url") + ".detail")
    if url is None and part.get("type") == "image":
        return ImageReference(field, None, detail)
    if not isinstance(url, str):
        _refuse(field, "must be a string")
    return ImageReference(field, url, detail)


def _call(call: object, field: str) -> dict[str, Any]:
    if not isinstance(call, Mapping):
        _refuse(field, "must be an object with a function")
    if call.get("type", "function") != "function":
        _refuse(f"{field}.type", 'must be "function"')
    function = call.get("function")
    if not isinstance(function, Mapping):
        _refuse(f"{field}.function", "must be an object with a name and arguments")
    name = _text(function.get("name"), f"{field}.function.name")
    if not name:
        _refuse(f"{field}.function.name", "must not be empty")
    arguments = _arguments(function.get("arguments"), f"{field}.function.arguments")
    found: dict[str, Any] = {"type": "function", "function": {"name": name, "arguments": arguments}}
    if call.get("id") is not None:
        found["id"] = _text(call["id"], f"{field}.id")
    return found


def _arguments(value: object, field: str) -> dict[str, Any]:
    if value is None or value == "":
        return {}
    if isinstance(value, str):
        try:
            value = strict_json(value)
        except (ValueError, RecursionError) as error:
            _refuse(field, f"is not valid JSON: {error}")
    if not isinstance(value, Mapping):
        _refuse(field, "must be a JSON object")
    plain: dict[str, Any] = plain_json(value, field)
    return plain


def plain_json(value: Any, field: str, depth: int = 0) -> Any:
    """The value as plain JSON types, which is all that templates are given.

    Raises:
        RequestError: it is not JSON, holds lone surrogates, or is nested too deep; names ``field``.
    """
    if depth > MAX_DEPTH:
        _refuse(field, f"is nested more than {MAX_DEPTH} deep")
    if isinstance(value, str):
        return _text(value, field)
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            _refuse(field, "must have strings as keys")
        return {_text(key, field): plain_json(item, field, depth + 1) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [plain_json(item, field, depth + 1) for item in value]
    return _refuse(field, f"must be JSON, not {type(value).__name__}")


def _text(value: object, field: str) -> str:
    if not isinstance(value, str):
        _refuse(field, "must be a string")
    check_unicode(value, field)
    return value


def _refuse(field: str, message: str) -> NoReturn:
    raise RequestError(f"{field} {message}", field=field)
