"""Anthropic's Messages and OpenAI's Responses API on the whole server: what chat completions say, they say too.

The faults of streams and tool calls (B88, B92, B94, B95, B100) are often mended for one API and left in the others.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import trio

from luce.engines.fake.engine import FakeEngine, Mode
from luce.engines.fake.times import Times
from luce.engines.seam import SlotSpec
from tests.faults.whole import SETTINGS, Live, live, picture
from tests.http.anthropic import talk as messages_api
from tests.http.conftest import Server, until
from tests.http.fake_model import live as fake_live
from tests.http.responses import talk as responses_api
from tests.text.answers import render

pytestmark = pytest.mark.trio

PICTURES = [picture(1), picture(2, 64, 64)]
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}}}


def in_chat(thinking: bool, limit: int, tool: bool) -> dict[str, Any]:
    parts: list[dict[str, Any]] = [{"type": "image_url", "image_url": {"url": url}} for url in PICTURES]
    called = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": "x", "b": 2}'}}
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [*parts, {"type": "text", "text": "Look"}]},
        {"role": "assistant", "content": "I ask.", "reasoning_content": "hm", "tool_calls": [called]},
        {"role": "tool", "tool_call_id": "1", "content": "done"},
        {"role": "user", "content": "And?"},
    ]
    found: dict[str, Any] = {"messages": messages, "max_tokens": limit, "temperature": 0}
    if tool:
        found["tools"] = [
            {"type": "function", "function": {"name": "f", "description": "d", "parameters": SCHEMA}}
        ]
    return found | {"chat_template_kwargs": {"enable_thinking": thinking}}


def in_messages(thinking: bool, limit: int, tool: bool) -> dict[str, Any]:
    sources = [
        {"type": "base64", "media_type": "image/png", "data": PICTURES[0].split(",")[1]},
        {"type": "url", "url": PICTURES[1]},
    ]
    parts: list[dict[str, Any]] = [{"type": "image", "source": source} for source in sources]
    said: list[dict[str, Any]] = [
        {"type": "thinking", "thinking": "hm", "signature": "unsigned"},
        {"type": "text", "text": "I ask."},
        {"type": "tool_use", "id": "1", "name": "f", "input": {"a": "x", "b": 2}},
    ]
    result = {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "done"}]}
    messages = [
        {"role": "user", "content": [*parts, {"type": "text", "text": "Look"}]},
        {"role": "assistant", "content": said},
        {"role": "user", "content": [result, {"type": "text", "text": "And?"}]},
    ]
    found: dict[str, Any] = {
        "messages": messages,
        "system": "Be brief.",
        "max_tokens": limit,
        "temperature": 0,
    }
    if tool:
        found["tools"] = [{"name": "f", "description": "d", "input_schema": SCHEMA}]
    return found | {} if thinking else found | {"thinking": {"type": "disabled"}}


def in_responses(thinking: bool, limit: int, tool: bool) -> dict[str, Any]:
    parts: list[dict[str, Any]] = [{"type": "input_image", "image_url": url} for url in PICTURES]
    items: list[dict[str, Any]] = [
        {"role": "user", "content": [*parts, {"type": "input_text", "text": "Look"}]},
        {
            "type": "reasoning",
            "id": "r",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "hm"}],
        },
        {"role": "assistant", "content": "I ask."},
        {"type": "function_call", "call_id": "1", "name": "f", "arguments": '{"a": "x", "b": 2}'},
        {"type": "function_call_output", "call_id": "1", "output": "done"},
        {"role": "user", "content": "And?"},
    ]
    found: dict[str, Any] = {
        "input": items,
        "instructions": "Be brief.",
        "max_output_tokens": limit,
        "temperature": 0,
    }
    if tool:
        found["tools"] = [{"type": "function", "name": "f", "description": "d", "parameters": SCHEMA}]
    return found | {"reasoning": {"effort": "max" if thinking else "none"}}


def from_chat(answer: dict[str, Any]) -> tuple[Any, ...]:
    """(thoughts, text, prompt tokens, tokens, tokens of thinking)."""
    message, usage = answer["choices"][0]["message"], answer["usage"]
    thinking = usage["completion_tokens_details"]["reasoning_tokens"]
    counts = (usage["prompt_tokens"], usage["completion_tokens"], thinking)
    return message.get("reasoning_content", ""), message["content"], *counts


def from_messages(answer: dict[str, Any]) -> tuple[Any, ...]:
    usage = answer["usage"]
    prompt = sum(usage[f"{kind}input_tokens"] for kind in ("", "cache_creation_", "cache_read_"))
    counts = (prompt, usage["output_tokens"], usage["output_tokens_details"]["thinking_tokens"])
    texts = [
        "".join(block[kind] for block in answer["content"] if block["type"] == kind)
        for kind in ("thinking", "text")
    ]
    return *texts, *counts


def from_responses(answer: dict[str, Any]) -> tuple[Any, ...]:
    usage = answer["usage"]
    counts = (
        usage["input_tokens"],
        usage["output_tokens"],
        usage["output_tokens_details"]["reasoning_tokens"],
    )
    texts = [
        "".join(part["text"] for item in answer["output"] if item["type"] == kind for part in item["content"])
        for kind in ("reasoning", "message")
    ]
    return *texts, *counts


async def post(server: Live, path: str, body: dict[str, Any]) -> dict[str, Any]:
    response = await server.client.post(path, json=body)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


@pytest.mark.parametrize("settings", SETTINGS[1:3])
@pytest.mark.parametrize("thinking", [False, True])
async def test_one_conversation_in_three_dialects(settings: dict[str, Any], thinking: bool) -> None:
    """The same prompt to the last token, so the same answer to the last bit; counted beforehand; cached afterwards."""
    for tool in (False, True):
        asked = (thinking, 24, tool)
        async with live(**settings) as server:
            expected = from_chat(await post(server, "/v1/chat/completions", in_chat(*asked)))
            assert len(expected[0] if thinking else expected[1]) > 10, (
                "the trap: there is something to compare"
            )
            counted = await post(server, "/v1/messages/count_tokens", in_messages(*asked))
            assert counted == {"input_tokens": expected[2]}
            said = await post(server, "/v1/messages", in_messages(*asked))
            assert from_messages(said) == expected
            assert said["usage"]["cache_read_input_tokens"] > 0, (
                "the prefix is cached, whatever API it came by"
            )
            told = await post(server, "/v1/responses", in_responses(*asked))
            assert from_responses(told) == expected
            assert told["usage"]["input_tokens_details"]["cached_tokens"] > 0
            streamed = messages_api.checked(await messages_api.events(server.server, **in_messages(*asked)))
            assert from_messages(streamed) == expected
            ended = responses_api.checked(await responses_api.events(server.server, **in_responses(*asked)))
            assert from_responses(ended) == expected


async def test_logprobs_are_chat_s() -> None:
    asked = (False, 24, False)
    logprobs = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    async with live() as server:
        chat = await post(
            server, "/v1/chat/completions", in_chat(*asked) | {"logprobs": True, "top_logprobs": 2}
        )
        told = await post(server, "/v1/responses", in_responses(*asked) | logprobs)
    assert told["output"][0]["content"][0]["logprobs"] == chat["choices"][0]["logprobs"]["content"]


async def test_b88_stop_sequences_inside_tokens() -> None:
    """Of every length, beginning and ending inside tokens: cut at the same place and named, streamed and whole."""
    asked = {"messages": [{"role": "user", "content": "Say"}], "max_tokens": 40, "temperature": 0}
    asked |= {"thinking": {"type": "disabled"}}
    async with live(**SETTINGS[2]) as server:
        (_, text, *_) = from_messages(await post(server, "/v1/messages", asked))
        assert len(text) > 25
        for length in range(1, 16, 2):
            stop = text[5 + length % 5 :][:length]
            for stops in ([stop], ["never", stop, stop + "never"]):
                fields = asked | {"stop_sequences": stops}
                whole = await messages_api.whole(server.server, **fields)
                streamed = messages_api.checked(await messages_api.events(server.server, **fields))
                assert messages_api.alike(whole) | {"usage": 0} == messages_api.alike(streamed) | {"usage": 0}
                assert from_messages(whole)[1] == text[: text.index(stop)]
                assert (whole["stop_reason"], whole["stop_sequence"]) == ("stop_sequence", stop)
        fields = asked | {"stop_sequences": [text[3:9] + "\0", text[-5:] + "\0"]}
        streamed = messages_api.checked(await messages_api.events(server.server, **fields))
        assert from_messages(streamed)[1] == text and streamed["stop_reason"] == "max_tokens"


async def test_an_answer_goes_on_from_where_the_caller_has_begun_it() -> None:
    """The begun text is the prompt's; thinking is off by itself; what is counted is what is used."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Say"}]
    asked: dict[str, Any] = {"max_tokens": 12, "temperature": 0, "messages": messages}
    async with live() as server:
        fresh = await post(server, "/v1/messages", asked | {"thinking": {"type": "disabled"}})
        begun = asked | {"messages": [*messages, {"role": "assistant", "content": "The answer is"}]}
        counted = await post(server, "/v1/messages/count_tokens", begun)
        said = await post(server, "/v1/messages", begun)
        assert from_messages(said)[2] == counted["input_tokens"] > from_messages(fresh)[2]
        assert from_messages(said)[0] == "" and from_messages(said)[1]
        chat = {
            "messages": begun["messages"],
            "add_generation_prompt": False,
            "continue_final_message": True,
            "chat_template_kwargs": {"enable_thinking": False},
        }
        other = await post(server, "/v1/chat/completions", asked | chat)
        assert from_messages(said) == from_chat(other)


def scripted(data: bytes) -> FakeEngine:
    """An engine whose every answer is these bytes, a token each."""

    def script(spec: SlotSpec, index: int) -> int | None:
        return data[index] if index < len(data) else None

    return FakeEngine(mode=Mode.INLINE, script=script)


CALLS = [render("f", {"a": "1", "b": "2"}), render("f", {"a": "é\n</parameter>", "b": "x"})]
ARGUMENTS = [{"a": "1", "b": 2}, {"a": "é\n</parameter>", "b": "x"}]


@pytest.mark.parametrize("closed", [True, False])
async def test_b95_b100_calls_in_both_dialects(closed: bool) -> None:
    """Two calls, with and without the end of thinking before them: in order, whole, and the same streamed."""
    text = f"<think>\nhm\n{'</think>' if closed else ''}\n\n{CALLS[0]}\n{CALLS[1]}"
    data = text.encode()
    async with fake_live(scripted(data), prefix_bytes=0) as server:
        tool = {"name": "f", "input_schema": SCHEMA}
        said = await messages_api.both(server.server, tools=[tool], max_tokens=len(data))
        thought, *calls = said["content"]
        assert thought["thinking"] == "hm" and [call["input"] for call in calls] == ARGUMENTS
        function = {"type": "function", "name": "f", "parameters": SCHEMA, "strict": False}
        told = await responses_api.both(
            server.server, model="fake", tools=[function], max_output_tokens=len(data)
        )
        thought, *items = told["output"]
        assert thought["content"][0]["text"] == "hm"
        assert [json.loads(item["arguments"]) for item in items] == ARGUMENTS


@pytest.mark.parametrize("line", ["👩‍👩‍👧‍👦 family", "नमस्ते दुनिया", "🇩🇪🏳️‍🌈 é"])
async def test_b92_no_half_characters(line: str) -> None:
    """One byte a token, cut at each byte by the limit."""
    data = line.encode()
    async with fake_live(scripted(data)) as server:
        for cut in range(1, len(data) + 1, 2):
            expected = data[:cut].decode("utf-8", "replace")
            said = messages_api.checked(await messages_api.events(server.server, max_tokens=cut))
            assert from_messages(said)[1] == expected
            told = responses_api.checked(await responses_api.events(server.server, max_output_tokens=cut))
            assert from_responses(told)[1] == expected
        deltas = [
            event["delta"]
            for event in await responses_api.events(server.server, max_output_tokens=len(data))
            if event["type"] == "response.output_text.delta"
        ]
        assert "".join(deltas) == line and all("�" not in delta for delta in deltas)


Listen = Callable[[Server], Any]


async def _messages(server: Server) -> Sequence[str]:
    return [name for name, _ in await messages_api.events(server)]


async def _responses(server: Server) -> Sequence[str]:
    return [event["type"] for event in await responses_api.events(server, max_output_tokens=60)]


@pytest.mark.parametrize(
    ("listen", "whole", "broken"),
    [(_messages, "message_stop", "error"), (_responses, "response.incomplete", "error")],
)
@pytest.mark.parametrize("ending", ["drain", "late drain", "engine fault"])
async def test_b94_how_streams_end_when_the_server_does(
    listen: Listen, whole: str, broken: str, ending: str
) -> None:
    """What runs may finish while there is time; then, and after a fault of the engine, the error event and no end."""
    engine = FakeEngine(times=Times(step=0.01))
    limit = 0.1 if ending == "late drain" else 20.0
    async with fake_live(engine, drain_timeout=limit) as server, trio.open_nursery() as nursery:
        names: list[str] = []

        async def run() -> None:
            names.extend(await listen(server.server))

        nursery.start_soon(run)
        await until(lambda: engine.open_slots)
        if ending == "engine fault":
            for slot in engine.open_slots:
                engine.fail_row(slot)
        else:
            server.service.drain()
    if ending == "drain":
        assert names[-1] == whole and broken not in names
    else:
        assert names[-1] == broken and whole not in names
