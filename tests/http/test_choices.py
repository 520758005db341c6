"""``n``: several choices for one prompt, over a real socket."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
import trio

from luce.actors.submission import Submission
from luce.actors.token_buffer import Delta, End
from luce.engines.fake.engine import FakeEngine, fake_capabilities
from luce.engines.fake.times import Times
from luce.errors import DeviceError
from luce.sampling.parameters import SamplingParams
from tests.http.conftest import Server, data_url, serving, until
from tests.http.fake_model import Live, live
from tests.http.stubs import Piece, Script, StubService, sampled, saying
from tests.http.test_connections import request
from tests.http.test_operation import CHAT, scraped, value
from tests.http.test_service import body

pytestmark = pytest.mark.trio


def each(*scripts: Script) -> Script:
    """One script for each choice."""

    def script(submission: Submission) -> AsyncIterator[Piece]:
        return scripts[submission.choice](submission)

    return script


def paced(text: str, pause: float) -> Script:
    return saying(text, pause=pause)


async def events_of(server: Server, asked: dict[str, Any], path: str = CHAT) -> list[Any]:
    """The events of a stream, parsed; '[DONE]' as text."""
    async with (
        server.http() as client,
        client.stream("POST", path, json=asked | {"stream": True}) as response,
    ):
        assert response.status_code == 200, await response.aread()
        lines = [line async for line in response.aiter_lines() if line.startswith("data: ")]
    return [line[6:] if line == "data: [DONE]" else json.loads(line[6:]) for line in lines]


# -- the answer --------------------------------------------------------------------------------------------------------


async def test_choices_come_by_index_and_the_prompt_counts_once(user: Any) -> None:
    service = StubService(each(saying("one"), saying("three", "length"), saying("")))
    async with serving(service) as server, server.openai() as client:
        answer = await client.chat.completions.create(model="stub", messages=user, n=3)
        alone = await client.chat.completions.create(model="stub", messages=user)
    assert [(one.index, one.message.content, one.finish_reason) for one in answer.choices] == [
        (0, "one", "stop"),
        (1, "three", "length"),
        (2, "", "stop"),
    ]
    assert answer.usage is not None and alone.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (alone.usage.prompt_tokens, 8)
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 8


async def test_a_stream_holds_each_choice_whole_and_one_end() -> None:
    """However their pieces come: a role, pieces and one finish_reason of each, one usage chunk, [DONE] behind all."""
    service = StubService(
        each(paced("slow", 0.03), saying("quick and long, all at once"), paced("xyz", 0.02))
    )
    asked = {
        "messages": [{"role": "user", "content": "Hi"}],
        "n": 3,
        "stream_options": {"include_usage": True},
    }
    async with serving(service) as server:
        *chunks, usage, done = await events_of(server, asked)
    assert done == "[DONE]"
    assert usage["choices"] == [] and usage["usage"]["completion_tokens"] == 4 + 27 + 3
    assert usage["usage"]["prompt_tokens"] == 2
    assert len({chunk["id"] for chunk in chunks}) == 1 and all(chunk["usage"] is None for chunk in chunks)
    assert [chunk["choices"][0]["delta"].get("role") for chunk in chunks[:3]] == ["assistant"] * 3
    texts, ends = {0: "", 1: "", 2: ""}, []
    for chunk in chunks:
        (choice,) = chunk["choices"]
        assert choice["index"] not in [index for index, _ in ends], "goes on after its end"
        texts[choice["index"]] += choice["delta"].get("content", "")
        assert "role" not in choice["delta"] or choice["delta"]["content"] == ""
        if choice["finish_reason"]:
            ends.append((choice["index"], choice["finish_reason"]))
    assert texts == {0: "slow", 1: "quick and long, all at once", 2: "xyz"}
    assert ends[0] == (1, "stop") and sorted(ends) == [(0, "stop"), (1, "stop"), (2, "stop")]


async def test_pieces_are_sent_when_they_are_there() -> None:
    """A choice that has said nothing yet holds up no other one, and none waits for the end of another one."""
    go_on = trio.Event()

    async def waiting(submission: Submission) -> AsyncIterator[Piece]:
        await go_on.wait()
        yield Delta("b", (sampled(98),))
        yield End("stop")

    service = StubService(each(waiting, saying("a"), waiting))
    async with serving(service) as server, server.openai() as client:
        stream = await client.chat.completions.create(
            model="stub", messages=[{"role": "user", "content": "Hi"}], n=3, stream=True
        )
        order = []
        async for chunk in stream:
            choice = chunk.choices[0]
            if choice.delta.content or choice.finish_reason:
                order.append((choice.index, choice.delta.content or choice.finish_reason))
            if choice.index == 1 and choice.finish_reason:
                go_on.set()
    assert order[:2] == [(1, "a"), (1, "stop")] and len(order) == 6


async def test_a_choice_that_fails_ends_the_stream_and_the_others() -> None:
    async def breaks(submission: Submission) -> AsyncIterator[Piece]:
        yield Delta("x", (sampled(120),))
        yield End("error", DeviceError("the step failed"))

    asked = {"messages": [{"role": "user", "content": "Hi"}], "n": 2}
    service = StubService(each(paced("a long answer " * 20, 0.02), breaks))
    async with serving(service) as server:
        events = await events_of(server, asked)
        assert "the step failed" in events[-1]["error"]["message"]
        assert sum("error" in event for event in events) == 1
        await until(lambda: not service.running)
        assert len(service.cancelled) == 1 and "/" not in service.cancelled[0]
        async with server.http() as client:
            whole = await client.post(CHAT, json=asked)
        assert whole.status_code == 500 and "the step failed" in whole.json()["error"]["message"]
        await until(lambda: not service.running)


@pytest.mark.parametrize("stream", [True, False])
async def test_the_client_that_leaves_ends_all(stream: bool) -> None:
    service = StubService(paced("a long answer " * 100, 0.01))
    async with serving(service) as server:
        connection = await server.connect()
        await connection.send_all(request(body(n=4, stream=stream)))
        await until(lambda: len(service.running) == 4)
        await connection.aclose()
        await until(lambda: not service.running)
    assert len(service.cancelled) == 4


TOOLS = [
    {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
]
CALL = "<tool_call>\n<function=look>\n</function>\n</tool_call>"


async def test_calls_are_numbered_in_their_own_choice() -> None:
    service = StubService(each(saying(f"{CALL}\n{CALL}"), saying(CALL), saying("none")))
    async with serving(service) as server, server.openai() as client:
        asked: dict[str, Any] = {
            "model": "stub",
            "messages": [{"role": "user", "content": "Hi"}],
            "tools": TOOLS,
            "n": 3,
        }
        whole = await client.chat.completions.create(**asked)
        numbers: list[tuple[int, int]] = []
        ends = {}
        async for chunk in await client.chat.completions.create(stream=True, **asked):
            (choice,) = chunk.choices
            numbers += [(choice.index, call.index) for call in choice.delta.tool_calls or () if call.id]
            if choice.finish_reason:
                ends[choice.index] = choice.finish_reason
    assert sorted(numbers) == [(0, 0), (0, 1), (1, 0)]
    assert ends == {0: "tool_calls", 1: "tool_calls", 2: "stop"}
    assert [len(one.message.tool_calls or ()) for one in whole.choices] == [2, 1, 0]
    ids = [call.id for one in whole.choices for call in one.message.tool_calls or ()]
    assert len(set(ids)) == 3


async def test_a_choice_that_has_its_one_call_gives_its_slot_back() -> None:
    """While the others go on; it would talk on until its limit."""

    async def calls_and_talks(submission: Submission) -> AsyncIterator[Piece]:
        for character in CALL:
            yield Delta(character, (sampled(ord(character)),))
        while True:
            await trio.sleep(0.005)
            yield Delta("x", (sampled(120),))

    finish = trio.Event()

    async def waiting(submission: Submission) -> AsyncIterator[Piece]:
        await finish.wait()
        yield Delta("b", (sampled(98),))
        yield End("stop")

    service = StubService(each(calls_and_talks, waiting))
    asked = body(n=2, tools=TOOLS, parallel_tool_calls=False)
    async with serving(service) as server, server.http() as client:

        async def go_on() -> None:
            await until(lambda: len(service.cancelled) == 1)
            finish.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(go_on)
            answer = (await client.post(CHAT, json=asked)).json()
    assert [one["finish_reason"] for one in answer["choices"]] == ["tool_calls", "stop"]


# -- what may be asked -------------------------------------------------------------------------------------------------


async def test_the_bound_is_the_operators() -> None:
    async with serving(max_choices=3) as server, server.http() as client:
        assert (await client.post(CHAT, json=body(n=3, best_of=3))).status_code == 200
        refused = await client.post(CHAT, json=body(n=4))
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "n" and "1 to 3" in refused.json()["error"]["message"]


async def test_seeds_of_choices_are_derived_from_the_requests() -> None:
    service = StubService()
    async with serving(service) as server, server.http() as client:
        response = await client.post(CHAT, json=body(n=3, seed=-5))
        drawn = await client.post(CHAT, json=body(n=2))
    params = [submission.params for submission in service.submissions]
    assert response.headers["x-luce-seed"] == "-5"
    assert [one.seed for one in params[:3]] == [
        SamplingParams(seed=-5).for_choice(index).seed for index in range(3)
    ]
    assert drawn.headers["x-luce-seed"] == str(params[3].seed) and params[3].seed != params[4].seed


# -- on real actors ----------------------------------------------------------------------------------------------------


def slow(**changes: Any) -> FakeEngine:
    return FakeEngine(fake_capabilities(**({"max_context": 4096} | changes)), times=Times(step=0.002))


@pytest.mark.parametrize("pictures", [0, 1])
async def test_each_choice_is_what_its_seed_gives_alone(pictures: int) -> None:
    urls = [data_url()] * pictures
    asked = body("the same for all", *urls, seed=7, temperature=1.0)
    async with live(FakeEngine()) as server, server.server.http() as client:
        seeds = [SamplingParams(seed=7).for_choice(index).seed for index in range(4)]
        alone = [(await client.post(CHAT, json=asked | {"seed": seed})).json() for seed in seeds]
    async with live(FakeEngine()) as server, server.server.http() as client:
        whole = (await client.post(CHAT, json=asked | {"n": 4})).json()
        streamed = dict.fromkeys(range(4), "")
        for event in (await events_of(server.server, asked | {"n": 4}))[:-1]:
            streamed[event["choices"][0]["index"]] += event["choices"][0]["delta"].get("content", "")
        metrics = server.service.loop.metrics
        rows = whole["usage"]["prompt_tokens"] + 3 + 4 * 19  # of the first request
        assert metrics.rows == rows + 4 + 4 * 19, (
            "the prompt's last row is all that a further choice computes"
        )
        assert server.service.encoder.images_encoded == pictures
    texts = [one["choices"][0]["message"]["content"] for one in alone]
    assert [one["message"]["content"] for one in whole["choices"]] == texts
    assert list(streamed.values()) == texts and len(set(texts)) == 4
    assert whole["usage"]["prompt_tokens"] == alone[0]["usage"]["prompt_tokens"]
    assert whole["usage"]["completion_tokens"] == 80
    assert whole["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


async def test_the_whole_answer_needs_no_room_for_those_that_are_read_later() -> None:
    """A whole answer longer than the buffers comes, too: no choice waits until another one has been read to its end."""
    async with (
        live(FakeEngine(fake_capabilities(max_context=4096)), buffer_limit=8, client_timeout=2.0) as server,
        server.server.http() as client,
    ):
        answer = (await client.post(CHAT, json=body(n=3, max_tokens=200))).json()
    assert [one["finish_reason"] for one in answer["choices"]] == ["length"] * 3
    assert answer["usage"]["completion_tokens"] == 600


async def running(server: Live, n: int, **headers: str) -> trio.SocketStream:
    connection = await server.server.connect()
    extra = "".join(f"{name}: {it}\r\n" for name, it in headers.items())
    await connection.send_all(request(body("x", n=n, max_tokens=3000, stream=True), headers=extra))
    await until(lambda: len(server.service.requests) == n)
    return connection


async def test_cancelling_ends_all_choices_and_slots_show_them() -> None:
    async with live(slow(num_slots=2)) as server, server.server.http() as client:
        connection = await running(server, 3, **{"x-request-id": "mine"})
        await until(lambda: len(server.service.loop.running) == 2 and server.service.loop.waiting)
        seen = (await client.get("/slots")).json()["requests"]
        series = await scraped(client)
        answer = seen[0]["id"]
        cancelled = await client.post(f"/v1/requests/{answer}/cancel")
        await until(lambda: not server.service.requests)
        data = b""
        with trio.move_on_after(2):
            while b"cancelled" not in data:
                data += await connection.receive_some()
        await connection.aclose()
    assert [(one["id"], one["choice"], one["request_id"]) for one in seen] == [
        (answer, 0, "mine"),
        (f"{answer}/1", 1, "mine"),
        (f"{answer}/2", 2, "mine"),
    ]
    assert {one["phase"] for one in seen[:2]} <= {"staging", "decoding"} and seen[2]["phase"] == "queued"
    assert value(series, "vllm:num_requests_running") == 2 and value(series, "vllm:num_requests_waiting") == 1
    assert (
        value(series, "vllm:request_params_n_sum") == 3 and value(series, "vllm:request_params_n_count") == 1
    )
    assert cancelled.json()["cancelled"] == [answer, f"{answer}/1", f"{answer}/2"]
    assert b"[DONE]" not in data


async def test_those_that_wait_for_the_prompt_are_shown_so() -> None:
    engine = FakeEngine(fake_capabilities(max_context=4096), times=Times(step=0.1))
    async with live(engine, prefill_budget=1) as server, server.server.http() as client:
        connection = await running(server, 2)
        await until(lambda: server.service.loop.running)
        seen = (await client.get("/slots")).json()["requests"]
        series = await scraped(client)
        await connection.aclose()
        await until(lambda: not server.service.requests)
    assert [one["phase"] for one in seen] == ["staging", "following"]
    assert value(series, "luce:requests", state="following") == 1
    assert value(series, "luce:queued_tokens") == seen[0]["prompt_tokens"]
    assert value(series, "vllm:num_requests_waiting") == 1


async def test_a_queue_without_room_for_all_takes_none() -> None:
    async with live(slow(num_slots=1), max_queued=2) as server, server.server.http() as client:
        connection = await running(server, 2)
        full = await client.post(CHAT, json=body(n=2))
        never = await client.post(CHAT, json=body(n=4))
        assert len(server.service.requests) == 2
        await connection.aclose()
        await until(lambda: not server.service.requests)
    assert full.status_code == 503 and full.headers["retry-after"]
    assert never.status_code == 400 and never.json()["error"]["param"] == "n"


async def test_the_log_counts_the_prompt_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "luce.requests"):
        async with live(FakeEngine()) as server, server.server.http() as client:
            answer = (await client.post(CHAT, json=body(n=3))).json()
    (record,) = [one.__dict__ for one in caplog.records if "completion_tokens" in one.__dict__]
    assert (record["answers"], record["completion_tokens"]) == (3, 60)
    assert record["prompt_tokens"] == answer["usage"]["prompt_tokens"]
    assert record["outcome"] == "finished"


async def test_openais_client_reads_them(user: Any) -> None:
    service = StubService(each(paced("one", 0.01), saying("two")))
    async with serving(service) as server, server.openai() as client:
        with pytest.raises(openai.BadRequestError, match="n must be from 1 to 8"):
            await client.chat.completions.create(model="stub", messages=user, n=9)
        async with client.chat.completions.stream(model="stub", messages=user, n=2) as stream:
            final = await stream.get_final_completion()
    found = [(one.index, one.message.content, one.finish_reason) for one in final.choices]
    assert found == [(0, "one", "stop"), (1, "two", "stop")]


# -- completions -------------------------------------------------------------------------------------------------------


async def test_completions_have_n_choices_for_each_prompt() -> None:
    """Numbered prompt by prompt, as OpenAI's are; each prompt counted once, each answer what it is alone."""
    asked: dict[str, Any] = {
        "prompt": ["first prompt", "and a second one"],
        "max_tokens": 12,
        "temperature": 1.0,
        "seed": 3,
    }
    async with live(FakeEngine()) as server, server.server.http() as client:
        alone = (await client.post("/v1/completions", json=asked)).json()
        whole = (await client.post("/v1/completions", json=asked | {"n": 3})).json()
        echoed = (await client.post("/v1/completions", json=asked | {"n": 2, "echo": True})).json()
        texts = dict.fromkeys(range(6), "")
        for event in (await events_of(server.server, asked | {"n": 3}, "/v1/completions"))[:-1]:
            texts[event["choices"][0]["index"]] += event["choices"][0]["text"]
        refused = await client.post("/v1/completions", json=asked | {"n": 2, "best_of": 4})
    choices = whole["choices"]
    assert [one["index"] for one in choices] == list(range(6))
    assert [choices[0]["text"], choices[3]["text"]] == [one["text"] for one in alone["choices"]]
    assert len({one["text"] for one in choices}) == 6
    assert [one["text"] for one in choices] == list(texts.values())
    assert whole["usage"]["prompt_tokens"] == alone["usage"]["prompt_tokens"]
    assert whole["usage"]["completion_tokens"] == 6 * 12
    for index, one in enumerate(echoed["choices"]):
        prompt = asked["prompt"][index // 2]
        assert one["text"] == prompt + choices[index // 2 * 3 + index % 2]["text"]
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "best_of"


async def test_the_whole_request_is_taken_or_none_of_its_prompts() -> None:
    async with live(slow(num_slots=1), max_queued=2) as server, server.server.http() as client:
        connection = await running(server, 1)
        full = await client.post("/v1/completions", json={"prompt": ["a", "b", "c"], "max_tokens": 3})
        assert len(server.service.requests) == 1
        await connection.aclose()
        await until(lambda: not server.service.requests)
    assert full.status_code == 503
