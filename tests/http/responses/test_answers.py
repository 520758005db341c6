"""POST /v1/responses: whole answers and streams, through openai's client and its types."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
import trio

from luce.actors.token_buffer import Delta, End
from luce.errors import CapacityError, DeadlineError, LuceError
from tests.http.conftest import serving, until
from tests.http.responses.talk import both, checked, events, post, whole
from tests.http.stubs import StubPreparer, StubService, endless, failing, make_model, sampled, saying, silent
from tests.text.answers import render

pytestmark = pytest.mark.trio

TEXT = "Grüße, 世界! 👩‍🚀"
TOOLS: list[Any] = [
    {
        "type": "function",
        "name": "f",
        "description": "does it",
        "strict": False,
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "string"}, "b": {"type": "integer"}},
        },
    }
]
CALL = render("f", {"a": "1", "b": "2"})
OTHER = render("f", {"a": "é\n"})
ANSWER = f"hm, so\n</think>\n\nI ask.\n\n{CALL}\n{OTHER}"


async def answer(text: str, reason: str = "stop", *, thinking: bool = False, **fields: Any) -> dict[str, Any]:
    model = make_model(preparer=StubPreparer(thinking))
    async with serving(StubService(saying(text, reason)), model) as server:
        return await both(server, **fields)


async def test_plain_text() -> None:
    said = await answer(TEXT)
    count = len(TEXT.encode())
    assert said == {
        "object": "response",
        "status": "completed",
        "error": None,
        "incomplete_details": None,
        "model": "stub",
        "output": [
            {
                "type": "message",
                "role": "assistant",
                "status": "completed",
                "content": [{"type": "output_text", "text": TEXT, "annotations": [], "logprobs": []}],
            }
        ],
        "usage": {
            "input_tokens": 2,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": count,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 2 + count,
        },
        "instructions": None,
        "max_output_tokens": None,
        "max_tool_calls": None,
        "metadata": {},
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "background": False,
        "prompt_cache_key": None,
        "reasoning": {"effort": None, "summary": None},
        "safety_identifier": None,
        "service_tier": "default",
        "store": False,
        "temperature": 0.7,
        "text": {"format": {"type": "text"}, "verbosity": "medium"},
        "tool_choice": "auto",
        "tools": [],
        "top_logprobs": 0,
        "top_p": 0.95,
        "truncation": "disabled",
        "user": None,
    }


async def test_every_part_is_an_item() -> None:
    said = await answer(ANSWER, thinking=True, tools=TOOLS)
    thought, text, *calls = said["output"]
    assert thought == {
        "type": "reasoning",
        "status": "completed",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "hm, so"}],
        "encrypted_content": None,
    }
    assert text["content"][0]["text"] == "I ask."
    call = {"type": "function_call", "name": "f", "status": "completed"}
    assert calls == [call | {"arguments": '{"a": "1", "b": 2}'}, call | {"arguments": '{"a": "é\\n"}'}]
    assert said["usage"]["output_tokens_details"] == {"reasoning_tokens": len("hm, so\n</think>")}
    assert said["status"] == "completed" and said["tools"] == TOOLS


async def test_all_of_it_in_one_piece() -> None:
    async def at_once(submission: Any) -> AsyncIterator[Any]:
        yield Delta(ANSWER, (sampled(120),))
        yield End("stop")

    async with serving(StubService(at_once), make_model(preparer=StubPreparer(thinking=True))) as server:
        said = await both(server, tools=TOOLS)
    assert [item["type"] for item in said["output"]] == [
        "reasoning",
        "message",
        "function_call",
        "function_call",
    ]


async def test_text_behind_a_call_is_an_item_of_its_own_and_so_is_a_second_thought() -> None:
    said = await answer(f"a\n</think>\n\nA {CALL}\n<think>\nb\n</think>\n\nB", thinking=True, tools=TOOLS)
    kinds = [item["type"] for item in said["output"]]
    assert kinds == ["reasoning", "message", "function_call", "reasoning", "message"]
    texts = [item["content"][0]["text"] for item in said["output"] if "content" in item]
    assert texts == ["a", "A", "b", "\n\nB"]


async def test_an_answer_cut_off() -> None:
    said = await answer("so it i", "length", max_output_tokens=9)
    assert (said["status"], said["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert said["output"][0]["status"] == "incomplete" and said["max_output_tokens"] == 9
    said = await answer("so it i", "length", thinking=True)
    assert (said["output"][0]["type"], said["output"][0]["status"]) == ("reasoning", "incomplete")
    said = await answer(f"A\n\n{CALL}", "length", tools=TOOLS)
    assert said["status"] == "incomplete"
    assert [item["status"] for item in said["output"]] == ["completed", "completed"]
    said = await answer(f"A\n\n{CALL[:40]}", "length", tools=TOOLS)
    assert said["output"][0]["content"][0]["text"] == f"A\n\n{CALL[:40]}"


async def test_an_empty_answer_has_no_items() -> None:
    said = await answer("")
    assert (said["output"], said["status"]) == ([], "completed")


async def test_logprobs_are_of_the_text_alone() -> None:
    fields = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    said = await answer("hm\n</think>\n\naé", thinking=True, **fields)
    thought, text = said["output"]
    assert "logprobs" not in thought["content"][0]
    entries = text["content"][0]["logprobs"]
    assert bytes(byte for entry in entries for byte in entry["bytes"]) == "\n\naé".encode()
    assert {entry["logprob"] for entry in entries} == {-0.25}
    assert all(len(entry["top_logprobs"]) == 2 for entry in entries)
    assert said["top_logprobs"] == 2
    said = await answer(f"{CALL}\nab", tools=TOOLS, **fields)
    entries = said["output"][1]["content"][0]["logprobs"]
    assert bytes(byte for entry in entries for byte in entry["bytes"]) == b"\nab"


async def test_what_was_asked_for_comes_back() -> None:
    fields: dict[str, Any] = {
        "instructions": "Be brief.",
        "metadata": {"a": "b"},
        "user": "u",
        "safety_identifier": "s",
        "prompt_cache_key": "k",
        "temperature": 0.25,
        "top_p": 0.5,
        "parallel_tool_calls": False,
        "tool_choice": "none",
        "reasoning": {"effort": "none", "summary": "auto"},
        "max_tool_calls": 3,
        "tools": TOOLS,
    }
    said = await answer("x", **fields)
    assert {name: said[name] for name in fields} == fields


async def test_one_call_at_most_and_none() -> None:
    text = f"A {CALL}\n{OTHER} B"
    said = await answer(text, tools=TOOLS, parallel_tool_calls=False)
    assert [item["type"] for item in said["output"]] == ["message", "function_call"]
    assert said["status"] == "completed"
    said = await answer(CALL, tools=TOOLS, tool_choice="none")
    assert said["output"][0]["content"][0]["text"] == CALL


async def test_allowed_tools_alone_are_offered() -> None:
    tools = [TOOLS[0], TOOLS[0] | {"name": "g"}]
    choice = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "g"}]}
    preparer = StubPreparer()
    async with serving(model=make_model(preparer=preparer)) as server:
        said = await both(server, tools=tools, tool_choice=choice)
    assert said["tools"] == tools and said["tool_choice"] == choice
    function = {name: TOOLS[0][name] for name in ("description", "parameters")}
    assert preparer.seen[0]["tools"] == [{"type": "function", "function": {"name": "g"} | function}]


async def test_the_clients_helpers() -> None:
    model = make_model(preparer=StubPreparer(thinking=True))
    async with serving(StubService(saying(ANSWER)), model) as server, server.openai() as sdk:
        made = await sdk.responses.create(model="stub", input="Hi", tools=TOOLS)
        assert made.output_text == "I ask." and made._request_id
        async with sdk.responses.stream(model="stub", input="Hi", tools=TOOLS) as stream:
            texts = [event.snapshot async for event in stream if event.type == "response.output_text.delta"]
            final = await stream.get_final_response()
        assert texts[-1] == final.output_text == "I ask."
        # what came back goes back as it is
        back = [*made.output, {"type": "function_call_output", "call_id": "call_1", "output": "ok"}]
        asked: list[Any] = [{"role": "user", "content": "Hi"}, *back]
        await sdk.responses.create(model="stub", input=asked, tools=TOOLS)
        again: list[Any] = [{"role": "user", "content": "Hi"}, *final.output, *back[-1:]]
        await sdk.responses.create(model="stub", input=again, tools=TOOLS)
    for seen in model.preparer.seen[-2:]:  # type: ignore[attr-defined]
        _, said, result = seen["messages"]
        assert (said["content"], said["reasoning_content"]) == ("I ask.", "hm, so")
        assert [c["function"]["arguments"] for c in said["tool_calls"]] == [{"a": "1", "b": 2}, {"a": "é\n"}]
        assert (result["role"], result["content"]) == ("tool", "ok")


async def test_comments_while_silent() -> None:
    async def slow(submission: Any) -> AsyncIterator[Any]:
        await trio.sleep(0.2)
        yield Delta("x", (sampled(120),))
        yield End("stop")

    async with serving(StubService(slow), keep_alive=0.02) as server:
        response = await post(server, {"input": "Hi", "stream": True})
        assert response.text.startswith("event: response.created\ndata: {")
        assert response.text.count(": keep-alive\n\n") > 3
        assert checked(await events(server))["status"] == "completed"


@pytest.mark.parametrize(
    "error", [LuceError("it broke"), DeadlineError("too late"), CapacityError("stopping")]
)
async def test_an_answer_that_fails(error: LuceError) -> None:
    """What was held back comes out; then the failed response and an error event, and no other end."""
    async with serving(StubService(failing(error, f"A\n\n{CALL[:30]}"))) as server:
        found = await events(server, tools=TOOLS)
        failed, told = found[-2:]
        assert failed["type"] == "response.failed"
        response = failed["response"]
        assert (response["status"], response["error"]["message"]) == ("failed", str(error))
        assert (told["type"], told["message"]) == ("error", str(error))
        (item,) = response["output"]
        assert item["status"] == "incomplete" and item["content"][0]["text"] == f"A\n\n{CALL[:30]}"
        assert not {"response.completed", "response.incomplete"} & {event["type"] for event in found}
        async with server.openai() as sdk:
            with pytest.raises(openai.APIError, match=str(error)):
                async with sdk.responses.stream(model="stub", input="Hi", tools=TOOLS) as stream:
                    await stream.get_final_response()
            with pytest.raises(openai.InternalServerError):
                await sdk.responses.create(model="stub", input="Hi")


async def test_an_answer_that_is_cancelled_by_its_id() -> None:
    async with serving(StubService(silent)) as server, trio.open_nursery() as nursery:
        found: list[Any] = []

        async def listen() -> None:
            found.extend(await events(server))

        nursery.start_soon(listen)
        await until(lambda: server.service.running)
        async with server.http() as http:
            name = next(iter(server.service.running))
            assert (await http.delete(f"/v1/requests/{name}")).json()["cancelled"] == [name]
    assert [event["type"] for event in found[-2:]] == ["response.failed", "error"]
    assert found[-1]["code"] == "cancelled"


@pytest.mark.parametrize("stream", [True, False])
async def test_who_leaves_frees_the_slot(stream: bool) -> None:
    async with serving(StubService(endless)) as server:
        with trio.move_on_after(0.3):
            asked = {"input": "Hi", "stream": stream}
            async with server.http() as http, http.stream("POST", "/v1/responses", json=asked):
                await trio.sleep_forever()
        await until(lambda: not server.service.running)
        assert len(server.service.cancelled) == 1


async def test_seeds_and_ids() -> None:
    async with serving() as server:
        response = await post(server, {"input": "Hi", "seed": 7})
        assert response.headers["x-luce-seed"] == "7"
        assert (await whole(server))["id"] != (await whole(server))["id"]
