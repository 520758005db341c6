"""Reasoning and tool calls over HTTP, whole and streamed, through the openai client."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import attrs
import pytest
import trio

from luce.actors.token_buffer import Delta, End
from luce.errors import LuceError
from tests.http.conftest import Server, serving
from tests.http.stubs import StubPreparer, StubService, failing, make_model, sampled, saying
from tests.text.answers import TOOLS, render

pytestmark = pytest.mark.trio

CALL = render("f", {"a": "1", "b": "2"})
OTHER = render("f", {"a": "é\n"})
ANSWER = f"hm, so\n</think>\n\nI ask.\n\n{CALL}\n{OTHER}"
USER = [{"role": "user", "content": "Hi"}]


@attrs.define
class Said:
    """An answer as a client has it in the end."""

    reasoning: str | None
    content: str | None
    calls: list[tuple[str, str]]
    finish: str
    logprobs: int = 0
    usage: dict[str, Any] | None = None


async def whole(server: Server, **fields: Any) -> Said:
    async with server.http() as client:
        response = await client.post("/v1/chat/completions", json={"messages": USER} | fields)
    assert response.status_code == 200, response.text
    choice = response.json()["choices"][0]
    message = choice["message"]
    calls = message.get("tool_calls", [])
    assert all(call["id"].startswith("call_") and call["type"] == "function" for call in calls)
    assert len({call["id"] for call in calls}) == len(calls)
    assert message["role"] == "assistant" and "index" not in json.dumps(calls)
    return Said(
        message.get("reasoning_content"),
        message["content"],
        [(call["function"]["name"], call["function"]["arguments"]) for call in calls],
        choice["finish_reason"],
        len((choice["logprobs"] or {"content": ()})["content"]),
        response.json()["usage"],
    )


async def streamed(server: Server, **fields: Any) -> Said:
    """Put together as OpenAI's own accumulators do; checks the rules of deltas."""
    said = Said(None, None, [], "")
    ids: list[str] = []
    async with server.openai() as client:
        options = {"include_usage": True}
        known = {name: fields.pop(name) for name in ("tools", "logprobs") if name in fields}
        stream = await client.chat.completions.create(
            model="stub", messages=USER, stream=True, stream_options=options, extra_body=fields, **known
        )
        async for chunk in stream:
            if not chunk.choices:
                said.usage = chunk.usage.model_dump(exclude_unset=True)
                continue
            (choice,) = chunk.choices
            delta = choice.delta.model_dump(exclude_unset=True)
            assert not said.finish, "nothing comes behind the finish reason"
            said.finish = choice.finish_reason or ""
            said.logprobs += len((choice.logprobs and choice.logprobs.content) or ())
            kinds = delta.keys() - {"role"}
            assert len(kinds) <= 1, "reasoning, content and calls come in deltas of their own"
            said.reasoning = _more(said.reasoning, delta.get("reasoning_content"))
            said.content = _more(said.content, delta.get("content"))
            for call in delta.get("tool_calls", ()):
                if "id" in call:
                    assert call.keys() == {"index", "id", "type", "function"} and call["type"] == "function"
                    assert call["index"] == len(ids) and call["function"]["name"] and call["id"] not in ids
                    ids.append(call["id"])
                    said.calls.append((call["function"]["name"], call["function"]["arguments"]))
                else:
                    assert call.keys() == {"index", "function"} and call["function"].keys() == {"arguments"}
                    name, arguments = said.calls[call["index"]]
                    said.calls[call["index"]] = (name, arguments + call["function"]["arguments"])
    if said.calls and not said.content:
        said.content = None
    return said


def _more(text: str | None, piece: str | None) -> str | None:
    return text if piece is None else (text or "") + piece


async def both(text: str, reason: str = "stop", thinking: bool = True, **fields: Any) -> Said:
    """The answer, which must be the same whole and streamed."""
    model = make_model(preparer=StubPreparer(thinking))
    async with serving(StubService(saying(text, reason)), model) as server:
        one, other = await whole(server, **fields), await streamed(server, **fields)
    assert one == other
    return one


async def test_all_parts() -> None:
    said = await both(ANSWER, tools=TOOLS, logprobs=True)
    calls = [("f", '{"a": "1", "b": 2}'), ("f", '{"a": "é\\n"}')]
    count, thought = len(ANSWER.encode()), len("hm, so\n</think>")
    assert said == Said("hm, so", "I ask.", calls, "tool_calls", count, said.usage)
    assert said.usage is not None and said.usage["completion_tokens"] == count
    assert said.usage["completion_tokens_details"] == {"reasoning_tokens": thought}


async def test_several_parts_in_one_piece() -> None:
    async def at_once(submission: Any) -> AsyncIterator[Any]:
        yield Delta(ANSWER, (sampled(120, -0.5),))
        yield End("stop")

    async with serving(StubService(at_once), make_model(preparer=StubPreparer(thinking=True))) as server:
        one, other = await whole(server, tools=TOOLS), await streamed(server, tools=TOOLS, logprobs=True)
    assert one == attrs.evolve(other, logprobs=0) and other.logprobs == 1
    assert (one.reasoning, one.content, len(one.calls)) == ("hm, so", "I ask.", 2)


async def test_plain_answers_have_no_new_fields() -> None:
    async with serving(StubService(saying("yes"))) as server, server.http() as client:
        for tools in (TOOLS, None):
            response = await client.post("/v1/chat/completions", json={"messages": USER, "tools": tools})
            choice = response.json()["choices"][0]
            assert choice["message"] == {"content": "yes", "role": "assistant", "refusal": None}
            assert choice["finish_reason"] == "stop"


@pytest.mark.parametrize("form", ["auto", "deepseek", None])
async def test_reasoning_alone_has_empty_content(form: str | None) -> None:
    said = await both("hm", "length", reasoning_format=form)
    assert (said.reasoning, said.content, said.finish) == ("hm", "", "length")


async def test_reasoning_may_be_left_out_or_left_in() -> None:
    said = await both(ANSWER, tools=TOOLS, include_reasoning=False)
    assert (said.reasoning, said.content, len(said.calls)) == (None, "I ask.", 2)
    said = await both(ANSWER, tools=TOOLS, reasoning_format="none", include_reasoning=True)
    assert (said.reasoning, said.content, len(said.calls)) == (None, "hm, so\n</think>\n\nI ask.", 2)
    assert said.usage is not None and said.usage["completion_tokens_details"] == {"reasoning_tokens": 0}


async def test_without_tools_calls_are_text_and_none_offers_none() -> None:
    said = await both(CALL, thinking=False)
    assert (said.content, said.calls, said.finish) == (CALL, [], "stop")
    for choice, offered in (("none", None), ("auto", TOOLS)):
        preparer = StubPreparer()
        async with serving(StubService(saying(CALL)), make_model(preparer=preparer)) as server:
            said = await whole(server, tools=TOOLS, tool_choice=choice)
        assert preparer.seen[0]["tools"] == offered
        assert (said.content, len(said.calls)) == ((CALL, 0) if choice == "none" else (None, 1))


async def test_one_call_at_most() -> None:
    text = f"A {CALL}\n{OTHER} B"
    said = await both(text, thinking=False, tools=TOOLS, parallel_tool_calls=False)
    assert (said.content, said.calls) == ("A", [("f", '{"a": "1", "b": 2}')])
    assert said.finish == "tool_calls"
    assert said.usage is not None and said.usage["completion_tokens"] == len(f"A {CALL}")
    said = await both(text, thinking=False, tools=TOOLS, parallel_tool_calls=True)
    assert (said.content, len(said.calls)) == ("A B", 2)
    said = await both("A", thinking=False, tools=TOOLS, parallel_tool_calls=False)
    assert (said.content, said.finish) == ("A", "stop")


async def test_one_call_frees_the_slot() -> None:
    async def endless(submission: Any) -> AsyncIterator[Any]:
        for character in CALL:
            yield Delta(character, (sampled(ord(character)),))
        while True:
            yield Delta("x", (sampled(120),))
            await trio.lowlevel.checkpoint()

    service = StubService(endless)
    async with serving(service) as server:
        said = await streamed(server, tools=TOOLS, parallel_tool_calls=False)
    assert said.finish == "tool_calls" and service.running == {}
    assert len(service.cancelled) == 1


@pytest.mark.parametrize("end", range(1, len(CALL), 7))
async def test_a_call_cut_off_is_content(end: int) -> None:
    async with serving(StubService(saying(f"A\n\n{OTHER}\n{CALL[:end]}", "length"))) as server:
        one, other = await whole(server, tools=TOOLS), await streamed(server, tools=TOOLS)
    assert one == other
    assert (one.content, len(one.calls), one.finish) == (f"A\n{CALL[:end]}", 1, "length")


async def test_held_text_comes_before_an_error() -> None:
    service = StubService(failing(LuceError("it broke"), f"A\n\n{CALL[:30]}"))
    async with serving(service) as server, server.http() as client:
        body = {"messages": USER, "tools": TOOLS, "stream": True}
        events = (await client.post("/v1/chat/completions", json=body)).text.split("\n\n")
    chunks = [json.loads(event.removeprefix("data: ")) for event in events if event]
    assert "error" in chunks[-1]
    text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks[:-1])
    assert text == f"A\n\n{CALL[:30]}"
