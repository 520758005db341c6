"""POST /v1/messages: whole answers and streams, through anthropic's client and its types."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anthropic
import pytest
import trio

from luce.actors.token_buffer import Delta, End
from luce.errors import CapacityError, DeadlineError, LuceError
from tests.http.anthropic.talk import USER, body, both, checked, client, events, post, whole
from tests.http.conftest import serving, until
from tests.http.stubs import StubPreparer, StubService, endless, failing, make_model, sampled, saying, silent
from tests.text.answers import render

pytestmark = pytest.mark.trio

TEXT = "Grüße, 世界! 👩‍🚀"
TOOLS = [
    {
        "name": "f",
        "description": "does it",
        "input_schema": {
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
    assert said == {
        "type": "message",
        "role": "assistant",
        "model": "stub",
        "content": [{"type": "text", "text": TEXT}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 2,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": len(TEXT.encode()),
            "output_tokens_details": {"thinking_tokens": 0},
        },
    }


async def test_every_part_is_a_block() -> None:
    said = await answer(ANSWER, thinking=True, tools=TOOLS)
    thought, text, *calls = said["content"]
    assert thought == {"type": "thinking", "thinking": "hm, so", "signature": "unsigned"}
    assert text == {"type": "text", "text": "I ask."}
    assert calls == [
        {"type": "tool_use", "name": "f", "input": {"a": "1", "b": 2}},
        {"type": "tool_use", "name": "f", "input": {"a": "é\n"}},
    ]
    assert (said["stop_reason"], said["stop_sequence"]) == ("tool_use", None)
    thinking = len("hm, so\n</think>")
    assert said["usage"]["output_tokens_details"] == {"thinking_tokens": thinking}


async def test_all_of_it_in_one_piece() -> None:
    async def at_once(submission: Any) -> AsyncIterator[Any]:
        yield Delta(ANSWER, (sampled(120),))
        yield End("stop")

    async with serving(StubService(at_once), make_model(preparer=StubPreparer(thinking=True))) as server:
        said = await both(server, tools=TOOLS)
    assert [block["type"] for block in said["content"]] == ["thinking", "text", "tool_use", "tool_use"]


async def test_text_behind_a_call_is_a_block_of_its_own_and_so_is_a_second_thought() -> None:
    said = await answer(f"a\n</think>\n\nA {CALL}\n<think>\nb\n</think>\n\nB", thinking=True, tools=TOOLS)
    kinds = [block["type"] for block in said["content"]]
    assert kinds == ["thinking", "text", "tool_use", "thinking", "text"]
    assert [block.get("thinking") or block.get("text") for block in said["content"]] == [
        "a",
        "A",
        None,
        "b",
        "\n\nB",
    ]


@pytest.mark.parametrize(
    ("fields", "reason", "expected"),
    [
        ({}, End("stop"), ("end_turn", None)),
        ({}, End("length"), ("max_tokens", None)),
        ({"stop_sequences": ["#", "@"]}, End("stop", stop="@"), ("stop_sequence", "@")),
        ({"stop_sequences": ["#"]}, End("stop"), ("end_turn", None)),
        ({"max_tokens": 62}, End("length"), ("max_tokens", None)),
        ({"max_tokens": 63}, End("length"), ("model_context_window_exceeded", None)),
        ({"max_tokens": 10**9}, End("stop"), ("end_turn", None)),
    ],
)
async def test_stop_reasons(fields: dict[str, Any], reason: End, expected: Any) -> None:
    async def script(submission: Any) -> AsyncIterator[Any]:
        yield Delta("x", (sampled(120),))
        yield reason

    service = StubService(script)
    async with serving(service) as server:
        said = await both(server, **fields)
    assert (said["stop_reason"], said["stop_sequence"]) == expected
    assert service.submissions[0].stop == tuple(fields.get("stop_sequences", ()))
    assert service.submissions[0].params.max_tokens == min(fields.get("max_tokens", 60), 62)


async def test_a_call_cut_off_is_text_and_a_thought_cut_off_is_thinking() -> None:
    said = await answer(f"A\n\n{CALL[:40]}", "length", tools=TOOLS)
    assert said["content"] == [{"type": "text", "text": f"A\n\n{CALL[:40]}"}]
    assert said["stop_reason"] == "max_tokens"
    said = await answer("so", "length", thinking=True)
    assert said["content"] == [{"type": "thinking", "thinking": "so", "signature": "unsigned"}]


async def test_an_empty_answer_has_no_blocks() -> None:
    said = await answer("")
    assert (said["content"], said["stop_reason"]) == ([], "end_turn")


async def test_thinking_may_be_shown_without_its_text() -> None:
    for display, shown in (("omitted", ""), ("summarized", "hm, so"), (None, "hm, so")):
        model = make_model(preparer=StubPreparer(thinking=True))
        async with serving(StubService(saying(ANSWER)), model) as server:
            said = await both(server, thinking={"type": "adaptive", "display": display})
        assert said["content"][0] == {"type": "thinking", "thinking": shown, "signature": "unsigned"}


async def test_one_call_at_most() -> None:
    text = f"A {CALL}\n{OTHER} B"
    choice = {"type": "auto", "disable_parallel_tool_use": True}
    said = await answer(text, tools=TOOLS, tool_choice=choice)
    assert [block["type"] for block in said["content"]] == ["text", "tool_use"]
    assert said["stop_reason"] == "tool_use"
    said = await answer(text, tools=TOOLS, tool_choice={"type": "auto"})
    assert len(said["content"]) == 4


async def test_no_tools_no_calls() -> None:
    preparer = StubPreparer()
    async with serving(StubService(saying(CALL)), make_model(preparer=preparer)) as server:
        said = await both(server, tools=TOOLS, tool_choice={"type": "none"})
        assert said["content"] == [{"type": "text", "text": CALL}] and said["stop_reason"] == "end_turn"
        assert preparer.seen[0]["tools"] is None
        await both(server, tools=TOOLS)
    assert preparer.seen[-1]["tools"] == [
        {
            "type": "function",
            "function": {
                "name": "f",
                "description": "does it",
                "parameters": TOOLS[0]["input_schema"],
            },
        }
    ]


async def test_the_clients_helpers() -> None:
    model = make_model(preparer=StubPreparer(thinking=True))
    async with serving(StubService(saying(ANSWER)), model) as server, client(server) as sdk:
        asked: dict[str, Any] = body(tools=TOOLS) | {"model": "stub"}
        seen: list[str] = []
        async with sdk.messages.stream(**asked) as stream:
            async for event in stream:
                if event.type == "input_json":
                    assert event.snapshot == {"a": "1", "b": 2} or event.snapshot == {"a": "é\n"}
                seen.append(event.type)
            assert stream.current_message_snapshot.stop_reason == "tool_use"
        assert {"text", "thinking", "signature", "input_json", "content_block_stop"} <= set(seen)
        made = await sdk.messages.create(**asked)
        assert made._request_id and len(made._request_id) == 32
        # what came back goes back as it is
        result = {"type": "tool_result", "tool_use_id": made.content[2].id, "content": "ok"}  # type: ignore[union-attr]
        asked["messages"] = [
            *USER,
            {"role": "assistant", "content": made.content},
            {"role": "user", "content": [result]},
        ]
        await sdk.messages.create(**asked)
    (said,) = [message for message in model.preparer.seen[-1]["messages"] if message["role"] == "assistant"]  # type: ignore[attr-defined]
    assert (said["content"], said["reasoning_content"]) == ("I ask.", "hm, so")
    assert [call["function"]["arguments"] for call in said["tool_calls"]] == [
        {"a": "1", "b": 2},
        {"a": "é\n"},
    ]


async def test_the_beta_half_of_the_client() -> None:
    async with (
        serving(StubService(saying(ANSWER)), make_model(preparer=StubPreparer(thinking=True))) as server,
        client(server) as sdk,
    ):
        asked: dict[str, Any] = body(tools=TOOLS) | {
            "model": "stub",
            "betas": ["interleaved-thinking-2025-05-14"],
        }
        made = await sdk.beta.messages.create(**asked)
        async with sdk.beta.messages.stream(**asked) as stream:
            final = await stream.get_final_message()
        counted = await sdk.beta.messages.count_tokens(model="stub", messages=USER)
    assert [block.type for block in made.content] == [block.type for block in final.content]
    assert [block.type for block in final.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert counted.input_tokens == 2


async def test_the_client_s_tool_runner() -> None:
    """It asks for a thread, is told that there are none, and goes on with whole conversations by itself."""

    @anthropic.beta_async_tool
    async def f(a: str, b: int) -> str:
        """does it"""
        return f"{a}{b}"

    model = make_model(preparer=StubPreparer(thinking=False))
    async with serving(StubService(saying(CALL)), model) as server, client(server) as sdk:
        runner = sdk.beta.messages.tool_runner(
            model="stub", max_tokens=60, messages=USER, tools=[f], max_iterations=2
        )
        turns = [[block.type for block in turn.content] async for turn in runner]
        assert turns == [["tool_use"], ["tool_use"]]
        assert len(server.service.submissions) == 2
        with pytest.raises(anthropic.BadRequestError) as refused:
            await sdk.beta.messages.create(**body() | {"model": "stub"}, thread={"type": "create"})
    assert refused.value.body == {
        "type": "error",
        "error": {
            "type": "invalid_request_error",
            "message": "thread is not supported: nothing is kept between requests; send the whole conversation",
            "details": {"error_code": "thread_unsupported_request", "unsupported": ["thread"]},
        },
        "request_id": refused.value.request_id,
    }


async def test_pings_while_silent() -> None:
    async def slow(submission: Any) -> AsyncIterator[Any]:
        await trio.sleep(0.2)
        yield Delta("x", (sampled(120),))
        yield End("stop")

    async with serving(StubService(slow), keep_alive=0.02) as server:
        found = await events(server)
    names = [name for name, _ in found]
    assert names[:2] == ["message_start", "ping"], "at once, with the headers"
    assert names.count("ping") > 3 and names[-1] == "message_stop"
    assert checked(found)["content"] == [{"type": "text", "text": "x"}]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (LuceError("it broke"), "api_error"),
        (DeadlineError("too late"), "timeout_error"),
        (CapacityError("stopping"), "overloaded_error"),
    ],
)
async def test_an_answer_that_fails(error: LuceError, kind: str) -> None:
    """What was held back comes out; then an error event and no end."""
    async with serving(StubService(failing(error, f"A\n\n{CALL[:30]}"))) as server:
        found = await events(server, tools=TOOLS)
        name, data = found[-1]
        assert name == "error" and data["error"] == {"type": kind, "message": str(error)}
        assert data["type"] == "error" and data["request_id"]
        assert "message_stop" not in [name for name, _ in found]
        deltas = [data["delta"]["text"] for name, data in found if name == "content_block_delta"]
        assert "".join(deltas) == f"A\n\n{CALL[:30]}"
        async with client(server) as sdk:
            with pytest.raises(anthropic.APIStatusError, match=str(error)):
                async with sdk.messages.stream(**body(tools=TOOLS)) as stream:
                    await stream.get_final_message()
            with pytest.raises(anthropic.InternalServerError) as raised:
                await sdk.messages.create(**body())
        assert raised.value.type == kind


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
    assert found[-1][0] == "error" and "cancelled" in found[-1][1]["error"]["message"]


@pytest.mark.parametrize("stream", [True, False])
async def test_who_leaves_frees_the_slot(stream: bool) -> None:
    async with serving(StubService(endless)) as server:
        with trio.move_on_after(0.3):
            async with server.http() as http, http.stream("POST", "/v1/messages", json=body(stream=stream)):
                await trio.sleep_forever()
        await until(lambda: not server.service.running)
        assert len(server.service.cancelled) == 1


async def test_a_full_server_says_when_to_come_again() -> None:
    service = StubService()
    service.full = True
    async with serving(service) as server:
        response = await post(server, body())
    assert response.status_code == 503 and response.headers["retry-after"] == "3"
    assert response.json()["type"] == "error" and response.json()["error"]["type"] == "overloaded_error"
    assert response.headers["request-id"] == response.json()["request_id"]


async def test_seeds_and_ids() -> None:
    async with serving() as server:
        response = await post(server, body(seed=7), headers={"x-request-id": "mine"})
        assert (response.headers["x-luce-seed"], response.headers["request-id"]) == ("7", "mine")
        assert (await whole(server))["id"] != (await whole(server))["id"]


async def test_headers_of_the_api_are_taken_and_not_needed() -> None:
    headers = {"anthropic-version": "2023-06-01", "anthropic-beta": "interleaved-thinking-2025-05-14,other"}
    async with serving(api_keys=("k",)) as server:
        for given in ({"x-api-key": "k"} | headers, {"authorization": "Bearer k"}, {"x-api-key": "k"}):
            assert (await post(server, body(), headers=given)).status_code == 200
        assert (await post(server, body(), headers=headers)).status_code == 401
