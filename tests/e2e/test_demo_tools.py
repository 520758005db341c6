"""Tools and reasoning with the bundled model, through the openai client: call, result, answer."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from openai.lib.streaming.chat import ChatCompletionStreamState

from luce.cli.demo import chat_body
from luce.demo.case import Case
from luce.demo.tasks import make_case
from luce.demo.tool_tasks import render_call
from luce.engines.load_model import demo_model
from luce.errors import ModelFileError
from tests.e2e.server import ServerProcess, serving
from tests.test_docs import ROOT

CASES = 8


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    try:
        demo_model()
    except ModelFileError as error:
        pytest.skip(f"NOT TESTED: {error}")
    with serving(None, "--slots", "4") as process:
        yield process


def ask(server: ServerProcess, body: dict[str, Any], stream: bool) -> Any:
    """The choice, put together by the client's own accumulator when it is streamed."""
    known = {name: value for name, value in body.items() if name != "chat_template_kwargs"}
    extra = {"chat_template_kwargs": body["chat_template_kwargs"]}
    with server.openai() as client:
        if not stream:
            return client.chat.completions.create(model="luce-demo", extra_body=extra, **known).choices[0]
        state = ChatCompletionStreamState()
        for chunk in client.chat.completions.create(
            model="luce-demo", extra_body=extra, stream=True, **known
        ):
            state.handle_chunk(chunk)
        return state.current_completion_snapshot.choices[0]


def few_wrong(failures: list[str | None]) -> None:
    # the model is right in over 95 of 100 cases of these tasks, not in all
    wrong = [failure for failure in failures if failure is not None]
    assert len(wrong) <= 1, "\n".join(wrong)


def test_calls_and_what_follows_from_their_results(server: ServerProcess) -> None:
    def loop(index: int) -> str | None:
        case = make_case("tool_answer", index, test=True)
        *asked, expected, result = case.messages
        body = chat_body(case) | {"messages": asked, "max_tokens": 200}
        choice = ask(server, body, stream=index % 2 == 0)
        message = choice.message.model_dump(exclude_unset=True)
        function = expected["tool_calls"][0]["function"]
        said = [
            (c["function"]["name"], json.loads(c["function"]["arguments"]))
            for c in message.get("tool_calls") or ()
        ]
        if said != [(function["name"], json.loads(function["arguments"]))]:
            return f"{index}: {message}, not {function}"
        assert choice.finish_reason == "tool_calls" and not message["content"]
        (call,) = choice.message.tool_calls
        # the client's own objects, sent back as they are
        answered = [*asked, choice.message, result | {"tool_call_id": call.id}]
        final = ask(server, chat_body(case) | {"messages": answered}, stream=index % 2 == 1)
        assert final.finish_reason == "stop" and not final.message.tool_calls
        return (
            None
            if final.message.content == case.answer
            else f"{index}: {final.message.content}, not {case.answer}"
        )

    with ThreadPoolExecutor(4) as pool:
        few_wrong(list(pool.map(loop, range(CASES))))


def test_made_up_tools_and_types(server: ServerProcess) -> None:
    def one(index: int) -> str | None:
        case = make_case("tool_call", index, test=True)
        choice = ask(server, chat_body(case), stream=index % 2 == 0)
        functions = [call.function for call in choice.message.tool_calls or ()]
        written = "\n".join(render_call(f.name, json.loads(f.arguments)) for f in functions)
        kinds = {
            key: one["type"]
            for tool in case.tools or ()
            if functions and tool["function"]["name"] == functions[0].name
            for key, one in tool["function"]["parameters"]["properties"].items()
        }
        for function in functions:
            for key, value in json.loads(function.arguments).items():
                assert isinstance(value, int if kinds.get(key) == "integer" else str), (key, value)
        return None if written == case.answer else f"{index}: {choice.message}, not {case.answer}"

    with ThreadPoolExecutor(4) as pool:
        few_wrong(list(pool.map(one, range(CASES))))


def test_reasoning_is_told_apart(server: ServerProcess) -> None:
    def one(index: int) -> str | None:
        case: Case = make_case("arithmetic_think", index, test=True)
        message = ask(server, chat_body(case), stream=index % 2 == 0).message
        said = (getattr(message, "reasoning_content", None), message.content)
        return None if said == (case.reasoning, case.answer) else f"{index}: {said}, not {case.completion!r}"

    with ThreadPoolExecutor(4) as pool:
        few_wrong(list(pool.map(one, range(CASES))))


def test_the_example_of_the_documents(server: ServerProcess) -> None:
    """`docs/http-api.md`, as it stands there but for ids."""
    text = (ROOT / "docs" / "http-api.md").read_text()
    section = text.partition("#### A call and its result\n")[2].partition("\n### ")[0]
    request, message, result = map(json.loads, re.findall(r"^```json\n(.*?)^```$", section, re.M | re.S))
    said = re.findall(r"`content` is then `(.*)`$", section, re.M)
    with server.http() as client:
        first = client.post("/v1/chat/completions", json=request).json()["choices"][0]
        assert first["finish_reason"] == "tool_calls"
        for call, documented in zip(first["message"]["tool_calls"], message["tool_calls"], strict=True):
            result["tool_call_id"] = call["id"]
            assert call["id"].startswith(documented["id"][:5]) and documented["id"].endswith("…")
            documented["id"] = call["id"]
        assert first["message"] == message
        again = request | {"messages": [*request["messages"], first["message"], result]}
        second = client.post("/v1/chat/completions", json=again).json()["choices"][0]
    assert [second["message"]["content"]] == said
