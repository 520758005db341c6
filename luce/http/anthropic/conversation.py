"""Messages of Anthropic's API as a conversation for chat templates.

- ``system`` comes first. A message of the role ``system`` stays where it is, joined to one before it; whether it may
  stand there is the template's decision.
- Results of tools become messages of their own, in the order of the blocks; a failed one begins with "Error: ".
- Thinking that comes back is the reasoning of its turn. Its signature says nothing here.
- An assistant's message at the very end is the beginning of the answer.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import attrs

from luce.errors import RequestError, quoted
from luce.http.answering.turns import TurnContent, add_system
from luce.http.anthropic.request import (
    AssistantMessage,
    ImageBlock,
    MessagesBody,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    UserMessage,
)
from luce.text.messages import Conversation, ImageReference, plain_json

__all__ = ["Asked", "conversation_of"]

_ERROR = "Error: "
_IMAGE_TYPE = re.compile(r"image/[\w.+-]{1,100}", re.IGNORECASE | re.ASCII)


@attrs.frozen(eq=False)
class Asked:
    conversation: Conversation
    begun: str | None
    """What the answer begins with; None: a new turn."""


def conversation_of(request: MessagesBody) -> Asked:
    """The conversation, and how the answer begins.

    Raises:
        RequestError: names the field at fault.
    """
    images: list[ImageReference] = []
    messages: list[dict[str, Any]] = []
    if request.system is not None:
        add_system(messages, _text_of(request.system))
    begun = None
    for index, message in enumerate(request.messages):
        field = f"messages[{index}].content"
        if isinstance(message, UserMessage):
            messages += _user(message, field, images)
        elif not isinstance(message, AssistantMessage):
            add_system(messages, _text_of(message.content))
        elif index == len(request.messages) - 1:
            begun = _begun(message, field)
        else:
            messages.append(_assistant(message, field))
    if all(message["role"] == "system" for message in messages):
        raise RequestError("messages must hold a message of the user's", field="messages")
    return Asked(Conversation(tuple(messages), tuple(images)), begun)


def _text_of(content: str | Sequence[TextBlock]) -> str:
    return content if isinstance(content, str) else "".join(block.text for block in content)


def _user(message: UserMessage, field: str, images: list[ImageReference]) -> list[dict[str, Any]]:
    if isinstance(message.content, str):
        return [{"role": "user", "content": message.content}]
    if not message.content:
        raise RequestError(f"{field} must hold at least one block", field=field)
    found: list[dict[str, Any]] = []
    said: TurnContent | None = None
    for index, block in enumerate(message.content):
        place = f"{field}[{index}]"
        if isinstance(block, ToolResultBlock):
            if said is not None:
                found.append({"role": "user", "content": said.content})
                said = None
            found.append(_result(block, place, images))
        else:
            said = said or TurnContent(images)
            _add(said, block, place)
    if said is not None:
        found.append({"role": "user", "content": said.content})
    return found


def _result(block: ToolResultBlock, field: str, images: list[ImageReference]) -> dict[str, Any]:
    result = TurnContent(images)
    if block.is_error:
        result.text(_ERROR)
    content = block.content or ()
    if isinstance(content, str):
        result.text(content)
    else:
        for index, part in enumerate(content):
            _add(result, part, f"{field}.content[{index}]")
    return {"role": "tool", "content": result.content, "tool_call_id": block.tool_use_id}


def _add(turn: TurnContent, block: TextBlock | ImageBlock, field: str) -> None:
    if isinstance(block, TextBlock):
        turn.text(block.text)
        return
    source = block.source
    if hasattr(source, "url"):
        turn.image(f"{field}.source.url", source.url)
        return
    place = f"{field}.source.media_type"
    if not _IMAGE_TYPE.fullmatch(source.media_type):
        raise RequestError(
            f"{place}: the media type is {quoted(source.media_type)}, not image/…", field=place
        )
    turn.image(f"{field}.source.data", f"data:{source.media_type};base64,{source.data}")


def _assistant(message: AssistantMessage, field: str) -> dict[str, Any]:
    if isinstance(message.content, str):
        return {"role": "assistant", "content": message.content}
    text: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for index, block in enumerate(message.content):
        place = f"{field}[{index}]"
        if isinstance(block, TextBlock):
            text.append(block.text)
        elif isinstance(block, ThinkingBlock):
            thoughts.append(block.thinking)
        elif isinstance(block, ToolUseBlock):
            called = {"name": block.name, "arguments": plain_json(block.input, f"{place}.input")}
            calls.append({"type": "function", "function": called, "id": block.id})
        else:
            raise _unreadable(place)
    found: dict[str, Any] = {"role": "assistant", "content": "".join(text)}
    if any(thoughts):
        found["reasoning_content"] = "\n".join(filter(None, thoughts))
    if calls:
        found["tool_calls"] = calls
    return found


def _begun(message: AssistantMessage, field: str) -> str:
    blocks = message.content
    if not isinstance(blocks, str):
        for index, block in enumerate(blocks):
            place = f"{field}[{index}]"
            if isinstance(block, RedactedThinkingBlock):
                raise _unreadable(place)
            if not isinstance(block, TextBlock):
                raise RequestError(
                    f"{place}: the last message is the assistant's, so the answer goes on from it, which must be text "
                    "alone",
                    field=place,
                )
    text = blocks if isinstance(blocks, str) else "".join(b.text for b in blocks if isinstance(b, TextBlock))
    if text != text.rstrip():
        raise RequestError(
            f"{field}: the answer goes on from the last message, which must not end with whitespace",
            field=field,
        )
    return text


def _unreadable(field: str) -> RequestError:
    return RequestError(
        f"{field}: redacted thinking can be read by the server alone that wrote it; leave the block out",
        field=field,
    )
