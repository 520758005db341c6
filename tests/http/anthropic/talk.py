"""Asking a server as anthropic's own client does: whole, streamed through its accumulator, and as raw events."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from anthropic import AsyncAnthropic
from anthropic.types import Message, RawMessageStreamEvent
from pydantic import TypeAdapter

from tests.http.conftest import Server

USER: list[Any] = [{"role": "user", "content": "Hi"}]
_EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)


def client(server: Server, **options: Any) -> AsyncAnthropic:
    return AsyncAnthropic(base_url=server.url, api_key="none", **({"max_retries": 0} | options))


def body(messages: Any = None, **fields: Any) -> dict[str, Any]:
    return {"model": None, "max_tokens": 60, "messages": USER if messages is None else messages} | fields


async def post(server: Server, asked: Mapping[str, Any], path: str = "/v1/messages", **options: Any) -> Any:
    async with server.http() as http:
        return await http.post(path, json=dict(asked), **options)


async def whole(server: Server, **fields: Any) -> dict[str, Any]:
    """The answer, which must be what the SDK's type says."""
    response = await post(server, body(**fields))
    assert response.status_code == 200, response.text
    Message.model_validate_json(response.content, strict=True)
    answer: dict[str, Any] = response.json()
    return answer


async def events(server: Server, **fields: Any) -> list[tuple[str, dict[str, Any]]]:
    """(name, data) of each event of a stream."""
    response = await post(server, body(stream=True, **fields))
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    found = []
    for text in response.text.split("\n\n"):
        if text:
            name, data = text.split("\n")
            found.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return found


def checked(found: list[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    """The message that a whole stream says; checks every rule about order and indices."""
    assert all(name == data["type"] for name, data in found)
    found = [one for one in found if one[0] != "ping"]
    for _, data in found:
        _EVENT.validate_json(json.dumps(data), strict=True)
    assert [name for name, _ in found].count("message_start") == 1 and found[0][0] == "message_start"
    assert [name for name, _ in found[-2:]] == ["message_delta", "message_stop"]
    message = found[0][1]["message"]
    assert message["content"] == [] and message["stop_reason"] is None and message["stop_sequence"] is None
    open_block: dict[str, Any] | None = None
    for name, data in found[1:-2]:
        if name == "content_block_start":
            assert open_block is None and data["index"] == len(message["content"])
            open_block = data["content_block"]
            message["content"].append(open_block)
            assert open_block.get("text", "") == open_block.get("thinking", "") == "", "it starts empty"
            assert open_block.get("input", {}) == {}
            pieces = ""
            continue
        assert open_block is not None and data["index"] == len(message["content"]) - 1
        if name == "content_block_stop":
            if open_block["type"] == "tool_use":
                open_block["input"] = json.loads(pieces)
            open_block = None
            continue
        assert name == "content_block_delta"
        delta = data["delta"]
        if delta["type"] == "text_delta":
            assert open_block["type"] == "text" and delta["text"]
            open_block["text"] += delta["text"]
        elif delta["type"] == "thinking_delta":
            assert open_block["type"] == "thinking" and delta["thinking"] and not open_block["signature"]
            open_block["thinking"] += delta["thinking"]
        elif delta["type"] == "signature_delta":
            assert open_block["type"] == "thinking" and not open_block["signature"]
            open_block["signature"] = delta["signature"]
        else:
            assert (delta["type"], open_block["type"]) == ("input_json_delta", "tool_use")
            pieces += delta["partial_json"]
    assert open_block is None
    ended = found[-2][1]
    return message | ended["delta"] | {"usage": message["usage"] | ended["usage"]}


def alike(answer: Mapping[str, Any]) -> dict[str, Any]:
    """An answer without its ids, which are drawn."""
    content = [{key: value for key, value in block.items() if key != "id"} for block in answer["content"]]
    ids = [block["id"] for block in answer["content"] if "id" in block]
    assert answer["id"].startswith("msg_") and all(one.startswith("toolu_") for one in ids)
    assert len(set(ids)) == len(ids)
    return {key: value for key, value in answer.items() if key != "id"} | {"content": content}


async def both(server: Server, **fields: Any) -> dict[str, Any]:
    """The answer, which must be the same whole, streamed, and as the SDK puts the stream together."""
    one = alike(await whole(server, **fields))
    assert alike(checked(await events(server, **fields))) == one
    async with client(server) as sdk, sdk.messages.stream(**body(**fields)) as stream:
        final = await stream.get_final_message()
    dumped = alike(final.model_dump(exclude_unset=True, exclude={"content": {"__all__": {"parsed_output"}}}))
    for block in dumped["content"]:
        block.pop("parsed_output", None)
    dumped = {key: value for key, value in dumped.items() if key in one}
    assert dumped == one
    return one
