"""Slots, batches and what an answer says of itself (B45, B70, B71, B76)."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
import trio

from luce.engines.fake.engine import FakeEngine, Mode, fake_capabilities
from luce.engines.seam import SlotSpec
from luce.errors import DeviceError
from luce.scheduling.block_pool import BlockPool
from luce.scheduling.holds import StaleHoldError
from tests.actors.harness import ask as submission
from tests.actors.harness import expected, path_of, read, serving, settled
from tests.faults.whole import (
    ENGINES,
    SETTINGS,
    alone,
    ask,
    counted,
    live,
    picture,
    shown,
    text_of,
    token_bytes,
)

WAYS = (
    "stop",
    "length",
    "cancel queued",
    "cancel encoding",
    "cancel prefill",
    "cancel decode",
    "row fails",
    "encode fails",
)


@pytest.mark.trio
@pytest.mark.parametrize("depth", [1, 2])
async def test_b45_every_way_out_gives_the_slot_back(depth: int) -> None:
    """200 requests over two slots, ended in every way there is; after each round both slots are free."""

    def forced(spec: SlotSpec, index: int) -> int | None:
        return ord("#") if index == 5 and spec.max_tokens == 21 else None  # these have a stop string

    engine = FakeEngine(fake_capabilities(num_slots=2), mode=Mode.THREAD, script=forced)
    ended: dict[str, int] = dict.fromkeys(WAYS, 0)
    wrong: list[int] = []
    news = trio.lowlevel.ParkingLot()

    async def has_slot(request: Any) -> None:
        """Waits without taking the engine's thread its time."""
        while request.slot is None and not request.machine.active("ending"):
            await news.park()

    async with serving(engine, prefill_budget=2, depth=depth) as service:
        service.events.listen(lambda _: news.unpark_all())

        async def one(n: int) -> None:
            way = WAYS[n % len(WAYS)]
            asked = submission(
                n,
                rows=40,
                tokens=21 if way == "stop" else 20,
                images="encod" in way,
                stop=("#",) if way == "stop" else (),
            )
            if way == "encode fails":
                engine.fail_encode(asked.images[0].digest)
            handle = service.submit(asked)
            request = service.requests[max(service.requests)]
            if way == "cancel queued":
                handle.cancel()
            elif way.startswith("cancel") and way != "cancel decode":
                await has_slot(request)
                handle.cancel()
            elif way == "row fails":
                await handle.next()
                if request.slot is not None and engine.open_slots >= {request.slot}:
                    engine.fail_row(request.slot)
            answer = await read(handle, until=3 if way == "cancel decode" else None)
            reason = {"stop": "stop", "length": "length"}.get(
                way, "cancelled" if "cancel" in way else "error"
            )
            if answer.end.reason == reason:
                ended[way] += 1
            if way == "length" and answer.tokens != tuple(expected(asked)):
                wrong.append(n)

        for start in range(0, 200, 8):
            async with trio.open_nursery() as nursery:
                for n in range(start, start + 8):
                    nursery.start_soon(one, n)
            await settled(service)
            assert not engine.open_slots and len(service.loop.memory.free_slots) == 2
            service.loop.memory.check_integrity(())
            pool = service.loop.memory.pool
            assert pool.free + pool.cached == pool.num_blocks
        assert path_of(service, "r199"), "the trap: the way of the last one was recorded"
    assert wrong == []
    assert min(ended.values()) >= 15 and sum(ended.values()) > 180, f"the trap: all ways were taken, {ended}"


def test_b45_a_second_release_is_an_error() -> None:
    pool = BlockPool(8, 16)
    hold = pool.allocate(2)
    pool.release(hold)
    with pytest.raises(StaleHoldError):
        pool.release(hold)
    engine = FakeEngine()
    engine.open(0, submission_spec())
    engine.close(0)
    with pytest.raises((DeviceError, AssertionError), match="slot 0"):
        engine.close(0)


def submission_spec() -> SlotSpec:
    asked = submission(1)
    prompt = asked.prompt
    return SlotSpec(prompt.token_ids, prompt.positions, prompt.rope_delta, asked.params, 8, prompt.spans, [])


# -- batches ------------------------------------------------------------------------------------------------------


@pytest.mark.trio
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("depth", [1, 2])
async def test_b70_four_equal_requests_take_the_steps_of_one(engine: str, depth: int) -> None:
    """Over HTTP: steps near those of one request, four rows in a step, the same answer."""
    body = ask("Count to forty, slowly.", max_tokens=40)
    (reference,) = await alone([body], engine)
    async with live(engine=engine, prefill_budget=None, depth=depth) as server:
        assert await server.all([body]) == [reference]
        one = server.service.loop.metrics.steps
        assert await server.all([body] * 4) == [reference] * 4
        metrics = server.service.loop.metrics
        assert metrics.steps - one <= 1.5 * one, (one, metrics)
        assert metrics.max_lanes == 4


OPTIONS: list[dict[str, Any]] = [
    {},
    {"temperature": 1, "seed": 0},
    {"temperature": 1, "seed": 1},
    {"temperature": 0.7, "seed": -5, "top_p": 0.9},
    {"temperature": 1.3, "seed": 2, "top_k": 5},
    {"temperature": 1, "seed": 3, "min_p": 0.05},
    {"repetition_penalty": 1.7},
    {"presence_penalty": 2},
    {"frequency_penalty": 2},
    {
        "temperature": 1,
        "seed": 4,
        "repetition_penalty": 1.3,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.5,
    },
    {"logit_bias": {"70": 6, "71": 6, "72": -100}},
    {"stop": ["a", "he", "zzz"]},
    {"stop": "t", "include_stop_str_in_output": True},
    {"stop_token_ids": list(range(0, 256, 3))},
    {"stop_token_ids": list(range(0, 256, 3)), "min_tokens": 5},
    {"logprobs": True, "top_logprobs": 0},
    {"logprobs": True, "top_logprobs": 20},
    {"logprobs": None, "top_logprobs": None},
    {"max_tokens": 1},
    {"chat_template_kwargs": {"enable_thinking": False}},
    {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]},
    {"ignore_eos": False, "temperature": 1, "seed": 9, "logit_bias": {"268": 8}},
    {"skip_special_tokens": False, "logit_bias": {"267": 20}},
    {"pictures": 1, "temperature": 1, "seed": 5},
]


def option_bodies() -> list[dict[str, Any]]:
    """A request of each of the options above."""
    bodies = []
    for index, fields in enumerate(OPTIONS):
        parts = [picture(3)] * fields.get("pictures", 0)
        given = {key: value for key, value in fields.items() if key != "pictures"}
        bodies.append(ask(*parts, f"Tell me the story, please {index % 3}", **{"max_tokens": 12} | given))
    return bodies


@pytest.mark.trio
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("running", SETTINGS)
async def test_b71_options_mean_the_same_alone_and_in_company(engine: str, running: dict[str, Any]) -> None:
    bodies = option_bodies()
    references = await alone(bodies, engine)
    # the fake engine knows no filters, biases and minimum lengths
    shown_options = 20 if engine == "qwen35" else 12
    answers = {str(reference["choices"]) for reference in references}
    assert len(answers) >= shown_options, f"the trap: options show, {len(answers)}"
    assert {reference["choices"][0]["finish_reason"] for reference in references} == {"stop", "length"}
    async with live(engine=engine, **running) as server:
        assert await server.all(bodies) == references
        if running["slots"] > 1:
            assert server.service.loop.metrics.max_lanes > 1, "the trap: they share steps"


# -- what an answer says of itself -----------------------------------------------------------------------------------

ENDS: dict[str, dict[str, Any]] = {
    "length": {"max_tokens": 9},
    "stop string": {"max_tokens": 40},
    "stop id": {"max_tokens": 40},
    "eos": {"max_tokens": 40, "ignore_eos": False},
}


@pytest.mark.trio
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("depth", [1, 2])
async def test_b76_usage_logprobs_and_text_are_of_the_same_tokens(end: str, depth: int) -> None:
    """Also with a step launched past the end: what it sampled is in neither count, log-probabilities nor text."""
    fields = ENDS[end]
    async with live(prefill_budget=16, depth=depth) as server:
        (free,) = await server.all([ask("Say something", max_tokens=40)])
        whole = token_bytes(free)
        assert len(shown(free)) == free["usage"]["completion_tokens"] == 40
        if end == "stop string":
            text = whole[:60].decode("utf-8", "ignore")
            stop = next(text[i : i + 2] for i in range(8, len(text) - 1) if "�" not in text[i : i + 2])
            fields = fields | {"stop": [stop]}
        elif end == "stop id":
            fields = fields | {"stop_token_ids": [_id(server, shown(free)[12])]}
        elif end == "eos":
            fields = fields | {"logit_bias": {str(server.model.eos_token_ids[0]): 9.0}}
        (answer,) = await server.all([ask("Say something", **fields)])
        assert answer["choices"][0]["finish_reason"] == ("length" if end == "length" else "stop")
        count = answer["usage"]["completion_tokens"]
        assert count == len(shown(answer)) < 40, "the trap: it ended early"
        data = token_bytes(answer)
        if end == "stop string":
            before, found, after = data.decode("utf-8", "replace").partition(stop)
            assert text_of(answer) == before and found and not after.strip("�")
        elif end == "length":
            assert data.decode("utf-8", "replace") == text_of(answer) and data == whole[: len(data)]
        else:
            last = bytes(shown(answer)[-1]["bytes"])
            assert data.removesuffix(last).decode("utf-8", "replace") == text_of(answer)
        streamed = await server.events(ask("Say something", **fields, stream_options={"include_usage": True}))
        same_stream(streamed, answer)
        if depth == 2 and end != "length":
            tokens = [r for r in server.service.events if r.machine == "request" and r.event == "token"]
            assert len(tokens) > 40 + 2 * count, "the trap: a row ran past the end"


@pytest.mark.trio
@pytest.mark.parametrize("depth", [1, 2])
async def test_b76_a_client_that_reads_late_gets_the_same_tokens(depth: int) -> None:
    """It reads when its request is long gone: what a step past the end sampled was not added meanwhile."""

    def script(spec: SlotSpec, index: int) -> int | None:
        return b"one two#three"[index] if index < 13 else None

    engine = FakeEngine(mode=Mode.THREAD, script=script)
    ways = {
        "stop string": submission(1, tokens=30, stop=("#",)),
        "stop id": submission(2, tokens=30, stop_token_ids=(ord("#"),)),
        "length": submission(3, tokens=8),
    }
    async with serving(engine, depth=depth) as service:
        handles = {way: service.submit(asked) for way, asked in ways.items()}
        await settled(service)
        late = Counter(
            record.id
            for record in service.events
            if record.event == "token" and "ending_finished" in record.configuration
        )
        # the ending token itself counts once; max_tokens is known to the planner and never overrun
        assert late == ({"r1": 1, "r2": 1, "r3": 1} if depth == 1 else {"r1": 2, "r2": 2, "r3": 1}), (
            "the trap"
        )
        for way, handle in handles.items():
            answer = await read(handle)
            assert answer.text == ("one two#" if way == "length" else "one two")
            assert answer.tokens == tuple(expected(ways[way], script=script)[:8]), way


def same_stream(events: list[str], answer: dict[str, Any]) -> None:
    assert events[-1] == "[DONE]"
    chunks = [json.loads(event) for event in events[:-1]]
    assert counted(chunks[-1]) == counted(answer) and chunks[-1]["choices"] == []
    choices = [chunk["choices"][0] for chunk in chunks[:-1]]
    assert "".join(choice["delta"].get("content", "") for choice in choices) == text_of(answer)
    entries = [
        entry for choice in choices if choice.get("logprobs") for entry in choice["logprobs"]["content"]
    ]
    assert entries == shown(answer)


def _id(server: Any, entry: dict[str, Any]) -> int:
    tokenizer = server.model.tokenizer
    return next(
        i for i in range(tokenizer.num_token_ids) if tokenizer.token_bytes(i) == bytes(entry["bytes"])
    )
