"""POST /v1/completions through the openai client and by hand: prompts, answers, streams, log-probabilities."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio

from luce.actors.submission import Submission
from luce.actors.token_buffer import Delta, End
from luce.errors import LuceError
from tests.http.conftest import serving, until
from tests.http.stubs import (
    CONTEXT,
    END_ID,
    NUM_IDS,
    Piece,
    Script,
    StubService,
    endless,
    failing,
    sampled,
    saying,
    silent,
)

pytestmark = pytest.mark.trio


def prompt_of(submission: Submission) -> list[int]:
    return list(submission.prompt.token_ids)


def by_prompt(**scripts: Script) -> Script:
    """A script for each prompt."""

    async def script(submission: Submission) -> AsyncIterator[Piece]:
        async for piece in scripts[bytes(prompt_of(submission)).decode()](submission):
            yield piece

    return script


async def post(server: Any, **body: Any) -> Any:
    async with server.http() as client:
        return await client.post("/v1/completions", json=body)


async def test_whole_answer() -> None:
    async with serving(StubService(saying("wörld", "length"))) as server, server.openai() as client:
        answer = await client.completions.create(model="stub", prompt="Hello, ")
    assert answer.object == "text_completion"
    assert answer.id.startswith("cmpl-")
    assert (answer.model, answer.system_fingerprint) == ("stub", "stub-1")
    (choice,) = answer.choices
    assert (choice.text, choice.index, choice.finish_reason, choice.logprobs) == ("wörld", 0, "length", None)
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (
        7,
        6,
        13,
    )


async def test_stream_says_the_same() -> None:
    async with serving(StubService(saying("wörld"))) as server, server.openai() as client:
        stream = await client.completions.create(
            model="stub", prompt="Hello, ", stream=True, stream_options={"include_usage": True}
        )
        *chunks, last, usage = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].text for chunk in chunks) == "wörld"
    assert all(chunk.choices[0].finish_reason is None for chunk in chunks)
    assert (last.choices[0].finish_reason, last.choices[0].text) == ("stop", "")
    assert usage.choices == []
    assert usage.usage is not None
    assert usage.usage.total_tokens == 13
    assert {chunk.object for chunk in [*chunks, last, usage]} == {"text_completion"}


async def test_headers_come_before_the_prompt_is_computed() -> None:
    async with (
        serving(StubService(silent)) as server,
        server.http() as client,
        client.stream("POST", "/v1/completions", json={"prompt": "a", "stream": True}) as response,
    ):
        assert response.status_code == 200
        assert await anext(response.aiter_text()) == ": keep-alive\n\n"


@pytest.mark.parametrize(
    ("prompt", "options", "expected"),
    [
        ("ab", {}, [[97, 98]]),
        ("a<end>b", {}, [[97, END_ID, 98]]),
        ("a<end>", {"parse_special": False}, [[97, *b"<end>"]]),
        ("a<end>", {"parse_special": None}, [[97, END_ID]]),
        ([97, END_ID], {}, [[97, END_ID]]),
        (["ab", "c"], {}, [[97, 98], [99]]),
        ([[97], [98, 99]], {}, [[97], [98, 99]]),
        (["ab"], {"add_special_tokens": True}, [[97, 98]]),
    ],
)
async def test_prompts(prompt: Any, options: dict[str, Any], expected: list[list[int]]) -> None:
    async with serving() as server:
        response = await post(server, prompt=prompt, **options)
        assert response.status_code == 200, response.text
        assert [prompt_of(one) for one in server.service.submissions] == expected
        assert [choice["index"] for choice in response.json()["choices"]] == list(range(len(expected)))


SCRIPTS = by_prompt(one=saying("1", pause=0.02), two=saying("zwei", "length"), six=saying("VI", pause=0.01))


async def test_each_prompt_has_its_answer() -> None:
    async with serving(StubService(SCRIPTS)) as server:
        answer = (await post(server, prompt=["one", "two", "six"])).json()
    said = [(one["index"], one["text"], one["finish_reason"]) for one in answer["choices"]]
    assert said == [(0, "1", "stop"), (1, "zwei", "length"), (2, "VI", "stop")]
    assert answer["usage"]["prompt_tokens"] == 9
    assert answer["usage"]["completion_tokens"] == 7


async def test_each_prompt_has_its_answer_in_a_stream() -> None:
    async with serving(StubService(SCRIPTS), keep_alive=0.005) as server, server.openai() as client:
        stream = await client.completions.create(
            model="stub", prompt=["one", "two", "six"], stream=True, stream_options={"include_usage": True}
        )
        *chunks, usage = [chunk async for chunk in stream]
    texts, ends = {0: "", 1: "", 2: ""}, {}
    for chunk in chunks:
        (choice,) = chunk.choices
        assert choice.index not in ends
        texts[choice.index] += choice.text
        if choice.finish_reason is not None:
            ends[choice.index] = choice.finish_reason
    assert texts == {0: "1", 1: "zwei", 2: "VI"}
    assert ends == {0: "stop", 1: "length", 2: "stop"}
    assert usage.usage is not None
    assert usage.usage.completion_tokens == 7


@pytest.mark.parametrize("stream", [False, True])
async def test_one_answer_that_fails_ends_them_all(stream: bool) -> None:
    scripts = by_prompt(good=saying("x" * 2000, pause=0.01), bad=failing(LuceError("no luck"), "a"))
    async with serving(StubService(scripts)) as server:
        response = await post(server, prompt=["good", "bad"], stream=stream)
        if stream:
            assert "[DONE]" not in response.text
            assert json.loads(response.text.split("data: ")[-1])["error"]["message"] == "no luck"
        else:
            assert response.status_code == 500
        await until(lambda: not server.service.running)


async def test_a_client_that_leaves_cancels_all() -> None:
    async with serving(StubService(endless)) as server:
        async with (
            server.http() as client,
            client.stream("POST", "/v1/completions", json={"prompt": ["a", "b"], "stream": True}) as response,
        ):
            await anext(response.aiter_bytes())
            assert len(server.service.running) == 2
        await until(lambda: not server.service.running)
        assert len(server.service.cancelled) == 2


async def test_the_request_is_cancelled_as_a_whole_by_any_of_its_ids() -> None:
    async with serving(StubService(endless)) as server, trio.open_nursery() as nursery:
        found: list[Any] = []

        async def ask() -> None:
            found.append(await post(server, prompt=["a", "b"], request_id="both"))

        nursery.start_soon(ask)
        await until(lambda: len(server.service.running) == 2)
        ids = list(server.service.running)
        async with server.http() as client:
            reply = await client.post(f"/v1/requests/{ids[1]}/cancel")
        assert reply.json()["cancelled"] == ids
        await until(lambda: found)
        assert found[0].status_code == 499
        assert found[0].headers["x-request-id"] == "both"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prompt", [["a<end>", "b<end>"], [[97, END_ID], [98, END_ID]]])
async def test_echo(prompt: Any, stream: bool) -> None:
    async with serving(StubService(saying("c"))) as server:
        response = await post(server, prompt=prompt, echo=True, stream=stream)
    lines = [line[6:] for line in response.text.split("\n\n") if line.startswith("data: {")] or [
        response.text
    ]
    texts = ["", ""]
    for line in lines:
        for one in json.loads(line)["choices"]:
            texts[one["index"]] += one["text"]
    assert texts == ["a<end>c", "b<end>c"]


async def test_ids_and_texts_do_not_mix() -> None:
    async with serving() as server:
        response = await post(server, prompt=["a", [98]])
        assert response.json()["error"]["param"] == "prompt[1]"


async def test_logprobs() -> None:
    async def script(submission: Submission) -> AsyncIterator[Piece]:
        yield Delta("a", (sampled(97, -0.5, ((97, -0.5), (98, -1.0))),))
        yield Delta("", (sampled(0xC3, -0.1, ((0xC3, -0.1), (99, -3.0))),))
        yield Delta("é", (sampled(0xA9, -float("inf"), ((100, -0.01), (101, -4.0))),))
        yield Delta("", (sampled(END_ID, -0.2, ((END_ID, -0.2), (260, -0.3))),))
        yield Delta("b", (sampled(98, None, ()),))
        yield End("stop")

    async with serving(StubService(script)) as server:
        whole = (await post(server, prompt="x", logprobs=2)).json()["choices"][0]
        streamed = await post(server, prompt="x", logprobs=2, stream=True)
    assert whole["text"] == "aéb"
    expected = {
        "tokens": ["a", "bytes:\\xc3", "bytes:\\xa9", "", "b"],
        "token_logprobs": [-0.5, -0.1, -9999.0, -0.2, -9999.0],
        "top_logprobs": [
            {"a": -0.5, "b": -1.0},
            {"bytes:\\xc3": -0.1, "c": -3.0},
            {"d": -0.01, "e": -4.0, "bytes:\\xa9": -9999.0},
            {"": -0.2},
            {"b": -9999.0},
        ],
        "text_offset": [0, 1, 1, 2, 2],
    }
    assert whole["logprobs"] == expected
    parts = [json.loads(line[6:]) for line in streamed.text.split("\n\n") if line.startswith("data: {")]
    found = [part["choices"][0]["logprobs"] for part in parts if part["choices"][0]["logprobs"]]
    assert {name: [x for one in found for x in one[name]] for name in expected} == expected


async def test_logprobs_through_the_client() -> None:
    async with serving(StubService(saying("ab"))) as server, server.openai() as client:
        answer = await client.completions.create(model="stub", prompt="x", logprobs=0)
        assert answer.choices[0].logprobs is not None
        assert answer.choices[0].logprobs.tokens == ["a", "b"]


async def test_what_reaches_the_sampler() -> None:
    async with serving() as server:
        await post(
            server,
            prompt=["a", "b"],
            temperature=0.5,
            top_p=0.9,
            stop=["x"],
            min_tokens=2,
            logit_bias={"5": 1.5},
        )
        first, second = (one.params for one in server.service.submissions)
        assert first == second  # the seed too: it was drawn once
        assert first.seed is not None
        assert (first.temperature, first.top_p, first.top_k, first.min_tokens) == (0.5, 0.9, 20, 2)
        assert first.logit_bias == ((5, 1.5),)
        assert server.service.submissions[0].stop == ("x",)
        assert server.service.submissions[0].stop_in_reasoning


@pytest.mark.parametrize(
    ("length", "given", "expected"),
    [(4, None, 16), (CONTEXT - 3, None, 3), (4, 2, 2), (4, CONTEXT - 4, CONTEXT - 4)],
)
async def test_max_tokens(length: int, given: int | None, expected: int) -> None:
    async with serving() as server:
        response = await post(server, prompt="x" * length, max_tokens=given)
        assert response.status_code == 200, response.text
        assert server.service.submissions[0].params.max_tokens == expected


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({}, "prompt", None),
        ({"prompt": None}, "prompt", None),
        ({"prompt": 3}, "prompt", None),
        ({"prompt": ""}, "prompt", None),
        ({"prompt": []}, "prompt", None),
        ({"prompt": ["a", ""]}, "prompt[1]", None),
        ({"prompt": [[]]}, "prompt[0]", None),
        ({"prompt": ["a", 3]}, "prompt[1]", None),
        ({"prompt": [3, "a"]}, "prompt[0]", None),
        ({"prompt": [[3], "a"]}, "prompt[1]", None),
        ({"prompt": [True]}, "prompt[0]", None),
        ({"prompt": [1.5]}, "prompt[0]", None),
        ({"prompt": [NUM_IDS]}, "prompt[0]", None),
        ({"prompt": [[1], [1, -1]]}, "prompt[1][1]", None),
        ({"prompt": [10**30]}, "prompt[0]", None),
        ({"prompt": ["a"] * 65}, "prompt", None),
        ({"prompt": "x" * CONTEXT}, "prompt", "context_length_exceeded"),
        ({"prompt": [1] * CONTEXT}, "prompt", "context_length_exceeded"),
        ({"prompt": ["a", "x" * CONTEXT]}, "prompt[1]", "context_length_exceeded"),
        ({"prompt": "x" * 100_000}, "prompt", "context_length_exceeded"),
        ({"prompt": "a", "max_tokens": 0}, "max_tokens", None),
        ({"prompt": "a", "max_tokens": CONTEXT}, "max_tokens", "context_length_exceeded"),
        ({"prompt": "a", "logprobs": 21}, "logprobs", None),
        ({"prompt": "a", "logprobs": -1}, "logprobs", None),
        ({"prompt": "a", "logprobs": True}, "logprobs", None),
        ({"prompt": "a", "logprobs": 1, "echo": True}, "echo", "unsupported_value"),
        ({"prompt": "a", "suffix": "b"}, "suffix", "unsupported_value"),
        ({"prompt": "a", "n": 9}, "n", None),
        ({"prompt": "a", "best_of": 2}, "best_of", "unsupported_value"),
        ({"prompt": "a", "n": 2, "best_of": 1}, "best_of", "unsupported_value"),
        ({"prompt": "a", "prompt_logprobs": 0}, "prompt_logprobs", "unsupported_value"),
        ({"prompt": "a", "messages": []}, "messages", "unknown_field"),
        ({"prompt": "a", "model": "gpt-9"}, "model", "model_not_found"),
        ({"prompt": "a", "stream_options": {}}, "stream_options", None),
        ({"prompt": "a", "min_tokens": 17}, "min_tokens", None),
        ({"prompt": "a", "stop": [""]}, "stop", None),
    ],
    ids=lambda value: str(value)[:50],
)
async def test_bad_requests(body: dict[str, Any], param: str, code: str | None) -> None:
    async with serving() as server:
        response = await post(server, **body)
        assert response.status_code == (404 if code == "model_not_found" else 400), response.text
        error = response.json()["error"]
        assert (error["param"], error["code"]) == (param, code), error
        assert len(error["message"]) < 500
        assert server.service.submissions == []


async def test_values_that_ask_for_nothing() -> None:
    nothing = {
        "suffix": "", "n": 1, "best_of": 1, "echo": False, "priority": 0, "use_beam_search": False, "user": "u",
        "logprobs": None, "stop": None, "response_format": {"type": "text"}, "length_penalty": 1.0,
        "mirostat": 0, "dry_multiplier": 0.0, "bad_words": [], "grammar": None,
    }  # fmt: skip
    async with serving() as server:
        response = await post(server, prompt="a", **nothing)
        assert response.status_code == 200, response.text
