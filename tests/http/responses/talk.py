"""Asking a server as openai's own client does: whole, streamed through its accumulator, and as raw events."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from tests.http.conftest import Server

_EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
URL = "/v1/responses"
PREFIXES = {"message": "msg_", "reasoning": "rs_", "function_call": "fc_"}


async def post(server: Server, asked: Mapping[str, Any], **options: Any) -> Any:
    async with server.http() as http:
        return await http.post(URL, json=dict(asked), **options)


async def whole(server: Server, **fields: Any) -> dict[str, Any]:
    """The answer, which must be what the SDK's type says."""
    response = await post(server, {"input": "Hi"} | fields)
    assert response.status_code == 200, response.text
    Response.model_validate_json(response.content, strict=True)
    answer: dict[str, Any] = response.json()
    return answer


async def events(server: Server, **fields: Any) -> list[dict[str, Any]]:
    """The events of a stream: named, numbered without gaps, and of the SDK's types."""
    response = await post(server, {"input": "Hi", "stream": True} | fields)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    found = []
    for text in response.text.split("\n\n"):
        if text and not text.startswith(":"):
            name, data = text.split("\n")
            event = json.loads(data.removeprefix("data: "))
            assert name == f"event: {event['type']}"
            _EVENT.validate_json(json.dumps(event), strict=True)
            found.append(event)
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    return found


def checked(found: list[dict[str, Any]]) -> dict[str, Any]:
    """The response that a whole stream says; checks every rule about order, indices and ids."""
    created, progress, *middle, last = found
    assert (created["type"], progress["type"]) == ("response.created", "response.in_progress")
    assert created["response"] == progress["response"]
    begun = created["response"]
    assert (begun["status"], begun["output"], begun["usage"]) == ("in_progress", [], None)
    output: list[dict[str, Any]] = []
    item: dict[str, Any] | None = None
    pieces: list[str] = []
    logprobs: list[Any] = []
    steps = ""
    for event in middle:
        kind = event["type"].removeprefix("response.")
        assert event["output_index"] == len(output)
        if kind == "output_item.added":
            assert item is None
            item, pieces, logprobs, steps = event["item"], [], [], "added"
            assert item["status"] == "in_progress" and not item.get("content") and not item.get("arguments")
            assert item["id"].startswith(PREFIXES[item["type"]])
            continue
        assert item is not None
        if kind == "output_item.done":
            done = event["item"]
            assert done["id"] == item["id"] and steps == (
                "text" if item["type"] == "function_call" else "part"
            )
            if item["type"] == "function_call":
                assert done == item | {"arguments": "".join(pieces), "status": "completed"}
            else:
                (part,) = done["content"]
                assert part["text"] == "".join(pieces)
                assert part.get("logprobs", [])[: len(logprobs)] == logprobs
            output.append(done)
            item = None
            continue
        assert event["item_id"] == item["id"] and event.get("content_index", 0) == 0
        name = {
            "message": "output_text",
            "reasoning": "reasoning_text",
            "function_call": "function_call_arguments",
        }
        if kind == "content_part.added":
            assert steps == "added" and event["part"]["text"] == ""
            steps = "open"
        elif kind == f"{name[item['type']]}.delta":
            assert steps == "open" or item["type"] == "function_call"
            assert event["delta"]
            pieces.append(event["delta"])
            logprobs += event.get("logprobs", [])
        elif kind == f"{name[item['type']]}.done":
            assert event.get("text", event.get("arguments")) == "".join(pieces)
            steps = "text"
        else:
            assert (kind, steps) == ("content_part.done", "text") and event["part"]["text"] == "".join(pieces)
            steps = "part"
    assert item is None
    ended: dict[str, Any] = last["response"]
    assert ended["output"] == output and last["type"] == f"response.{ended['status']}"
    changing = {"status", "output", "usage", "completed_at", "incomplete_details"}
    assert {k: v for k, v in ended.items() if k not in changing} == {
        k: v for k, v in begun.items() if k not in changing
    }
    return ended


def alike(answer: Mapping[str, Any]) -> dict[str, Any]:
    """An answer without its ids and times, which are its own."""
    assert answer["id"].startswith("resp_") and answer["created_at"] > 1_700_000_000
    assert (answer["completed_at"] is not None) == (answer["status"] == "completed")
    ids = [item["id"] for item in answer["output"]] + [
        i["call_id"] for i in answer["output"] if "call_id" in i
    ]
    assert len(set(ids)) == len(ids)
    output = [{k: v for k, v in item.items() if k not in ("id", "call_id")} for item in answer["output"]]
    drawn = ("id", "created_at", "completed_at")
    return {key: value for key, value in answer.items() if key not in drawn} | {"output": output}


async def both(server: Server, **fields: Any) -> dict[str, Any]:
    """The answer, which must be the same whole, streamed, and as the SDK puts the stream together."""
    one = alike(await whole(server, **fields))
    found = await events(server, **fields)
    assert alike(checked(found)) == one
    async with server.openai() as sdk:
        asked = {"model": "stub", "input": "Hi"} | fields
        async with sdk.responses.stream(**asked) as stream:
            last = [event async for event in stream][-1]
        assert last.type == f"response.{one['status']}"
        dumped = last.response.model_dump(mode="json", exclude_unset=True, by_alias=True)
    for item in dumped["output"]:
        item.pop("parsed_arguments", None)
        for part in item.get("content") or ():
            part.pop("parsed", None)
    assert alike(dumped) == one
    return one
