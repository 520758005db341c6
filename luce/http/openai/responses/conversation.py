"""Input of the Responses API as a conversation for chat templates.

- ``instructions`` come first. Neighbouring system and developer messages are one: templates take one, at the beginning.
- Reasoning, messages and calls of the assistant that stand in a row are one turn of it.
- ``function_call_output`` is a message of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from luce.errors import RequestError, reason
from luce.http.answering.turns import TurnContent, add_system
from luce.http.openai.responses.request import (
    CallItem,
    CallOutputItem,
    InputImage,
    InputText,
    MessageItem,
    OutputText,
    ReasoningItem,
    Refusal,
    ResponsesRequest,
)
from luce.text.messages import Conversation, ImageReference, plain_json
from luce.text.strict_json import strict_json

__all__ = ["conversation_of", "easy_messages"]


def easy_messages(body: dict[str, Any]) -> None:
    """Messages may leave their type out; here they get it."""
    items = body.get("input")
    for item in items if isinstance(items, list) else ():
        if isinstance(item, dict) and "role" in item and item.get("type") is None:
            item["type"] = "message"


def conversation_of(request: ResponsesRequest) -> Conversation:
    """The conversation.

    Raises:
        RequestError: names the field at fault.
    """
    messages: list[dict[str, Any]] = []
    images: list[ImageReference] = []
    if request.instructions is not None:
        add_system(messages, request.instructions)
    if isinstance(request.input, str):
        messages.append({"role": "user", "content": request.input})
    else:
        turn: _AssistantTurn | None = None
        for index, item in enumerate(request.input):
            place = f"input[{index}]"
            own = isinstance(item, CallItem | ReasoningItem) or (
                isinstance(item, MessageItem) and item.role == "assistant"
            )
            if own:
                turn = turn or _AssistantTurn(messages, images)
                turn.add(item, place)
            else:
                turn = None
                _others(item, place, messages, images)
    if all(message["role"] == "system" for message in messages):
        raise RequestError("input must hold a message of the user's", field="input")
    return Conversation(tuple(messages), tuple(images))


def _others(item: Any, field: str, messages: list[dict[str, Any]], images: list[ImageReference]) -> None:
    """A message that is not the assistant's, or a tool's result."""
    if isinstance(item, CallOutputItem):
        content = _content(item.output, f"{field}.output", images)
        messages.append({"role": "tool", "content": content} | _named(item.call_id))
        return
    content = _content(item.content, f"{field}.content", images)
    if item.role == "user":
        messages.append({"role": "user", "content": content})
    elif isinstance(content, str):
        add_system(messages, content)
    else:
        raise RequestError(
            f"{field}.content: a {item.role} message holds text alone", field=f"{field}.content"
        )


def _named(call_id: str | None) -> dict[str, str]:
    return {} if call_id is None else {"tool_call_id": call_id}


Parts = str | Sequence[InputText | InputImage | OutputText | Refusal] | Sequence[InputText | InputImage]


def _content(parts: Parts, field: str, images: list[ImageReference]) -> str | list[dict[str, str]]:
    turn = TurnContent(images)
    _add(turn, parts, field)
    return turn.content


def _add(turn: TurnContent, parts: Parts, field: str) -> None:
    if isinstance(parts, str):
        turn.text(parts)
        return
    for index, part in enumerate(parts):
        if isinstance(part, InputImage):
            turn.image(f"{field}[{index}].image_url", part.image_url, part.detail)
        else:
            turn.text(part.refusal if isinstance(part, Refusal) else part.text)


class _AssistantTurn:
    """One turn of the assistant's, as its items come."""

    def __init__(self, messages: list[dict[str, Any]], images: list[ImageReference]) -> None:
        self._message: dict[str, Any] = {"role": "assistant", "content": ""}
        self._content = TurnContent(images)
        self._thoughts: list[str] = []
        messages.append(self._message)

    def add(self, item: Any, field: str) -> None:
        if isinstance(item, MessageItem):
            _add(self._content, item.content, f"{field}.content")
            self._message["content"] = self._content.content
        elif isinstance(item, CallItem):
            calls = self._message.setdefault("tool_calls", [])
            calls.append({"type": "function", "function": _called(item, field), "id": item.call_id})
        else:
            self._think(item, field)

    def _think(self, item: ReasoningItem, field: str) -> None:
        parts = item.content or item.summary or ()
        if item.encrypted_content and not parts:
            raise RequestError(
                f"{field}: encrypted_content can be read by the server alone that wrote it; leave the item out",
                field=f"{field}.encrypted_content",
                code="unsupported_value",
            )
        self._thoughts += [part.text for part in parts if part.text]
        if self._thoughts:
            self._message["reasoning_content"] = "\n".join(self._thoughts)


def _called(item: CallItem, field: str) -> dict[str, Any]:
    place = f"{field}.arguments"
    try:
        arguments = strict_json(item.arguments) if item.arguments else {}
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{place} is not valid JSON: {reason(error)}", field=place) from None
    if not isinstance(arguments, dict):
        raise RequestError(f"{place} must be a JSON object", field=place)
    return {"name": item.name, "arguments": plain_json(arguments, place)}
