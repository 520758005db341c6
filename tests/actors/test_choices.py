"""Several choices for one prompt: each is what it is alone, and the prompt is computed once."""

from __future__ import annotations

import random
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

from luce.actors.choices import choices_of
from luce.actors.service import Service
from luce.actors.submission import Submission, prefix_keys
from luce.engines.fake.engine import FakeEngine, Mode, deepseek_capabilities, fake_capabilities
from luce.engines.fake.times import Times
from luce.engines.seam import Capabilities, WorkKind
from luce.errors import CapacityError, DeadlineError, RequestError
from luce.trace.events import EventRecord
from tests.actors.harness import (
    Answer,
    ask,
    check_clean,
    expected,
    make_prompt,
    path_of,
    read,
    read_all,
    read_choices,
    serving,
    settled,
)

pytestmark = pytest.mark.trio


def capabilities_of(**changes: Any) -> Capabilities:
    return fake_capabilities(**({"block_size": 16, "max_context": 400} | changes))


def engine_of(mode: Mode = Mode.INLINE, times: Times | None = None, **changes: Any) -> FakeEngine:
    return FakeEngine(capabilities_of(**changes), mode=mode, times=times)


def sampled(
    name: int, n: int, *, answer_start: int | None = None, size: int = 16, **asked: Any
) -> tuple[Submission, ...]:
    one = ask(name, **({"temperature": 1.0} | asked))
    if answer_start is not None:
        one = attrs.evolve(one, prompt=Starting(one.prompt, answer_start))  # type: ignore[arg-type]
    one = attrs.evolve(one, keys=prefix_keys(one, capabilities_of(block_size=size)))
    return choices_of(one, n)


class Starting:
    """A prompt whose generation prompt begins somewhere."""

    def __init__(self, prompt: Any, answer_start: int) -> None:
        self._prompt = prompt
        self.answer_start = answer_start

    def __getattr__(self, name: str) -> Any:
        return getattr(self._prompt, name)


def all_right(answers: list[Answer], group: tuple[Submission, ...]) -> None:
    for asked, answer in zip(group, answers, strict=True):
        assert answer.end.reason == "length", answer.end
        assert answer.tokens == tuple(expected(asked))


def entered(service: Service, request: str, state: str) -> trio.Event:
    """Set when the request enters the state."""
    there = trio.Event()

    def look(record: EventRecord) -> None:
        if record.machine == "request" and record.id == request and state in record.configuration:
            there.set()

    service.events.listen(look)
    return there


# -- what a choice is --------------------------------------------------------------------------------------------------


async def test_the_first_choice_is_the_lone_request_and_the_others_have_their_own_seeds() -> None:
    lone = ask(1, temperature=1.0)
    group = choices_of(lone, 4)
    assert group[0].params == lone.params
    assert [one.params for one in group] == [lone.params.for_choice(index) for index in range(4)]
    assert [one.id for one in group] == ["r1", "r1/1", "r1/2", "r1/3"]
    assert [one.choice for one in group] == [0, 1, 2, 3] and {one.n for one in group} == {4}
    assert all(one.prompt is lone.prompt and one.images is lone.images for one in group)


async def test_choices_extend_their_own_keys() -> None:
    """An answer's tokens are named in the keys of its request: of no other one."""
    group = sampled(1, 2, rows=20)
    first, second = (one.keys for one in group)
    assert first is not None and second is not None
    first.extend([1, 2, 3] * 10)
    second.extend([4, 5, 6] * 10)
    assert first.block_digests(0, 1) == second.block_digests(0, 1)
    assert first.block_digests(1, 2) != second.block_digests(1, 2)
    assert len(first) == len(second) == 50


# -- the prompt is computed once ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [Mode.INLINE, Mode.THREAD])
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("budget", [1, 7, 64, None])
async def test_each_choice_is_what_it_is_alone(mode: Mode, depth: int, budget: int | None) -> None:
    group, other = sampled(1, 4, rows=40), ask(2, rows=33)
    engine = engine_of(mode)
    async with serving(engine, depth=depth, prefill_budget=budget) as service:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read, service.submit(other))
            answers = await read_choices(service.submit_all(group))
        await settled(service)
    all_right(answers, group)
    assert len({answer.tokens for answer in answers}) == 4


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize(
    ("answer_start", "again"), [(None, 1), (200, 1), (195, 5), (135, 65), (134, 1), (3, 1)]
)
async def test_rows_of_the_prompt_are_computed_once(depth: int, answer_start: int | None, again: int) -> None:
    """``again``: rows that each further choice computes itself, those behind the last place that is captured."""
    group = sampled(1, 4, rows=200, tokens=8, answer_start=answer_start)
    async with serving(engine_of(), depth=depth, prefill_budget=16) as service:
        choices = service.submit_all(group)
        answers = await read_choices(choices)
        await settled(service)
        assert service.loop.metrics.rows == 200 + 3 * again + 4 * 7
        cached = [handle.usage.cached_tokens for handle in choices]
        assert cached == [0] + [200 - again] * 3
    all_right(answers, group)


async def test_whole_blocks_of_the_prompt_are_held_once() -> None:
    group, most = sampled(1, 4, rows=160, tokens=8), 0

    def look(_: EventRecord) -> None:
        nonlocal most
        most = max(most, service.loop.memory.pool.held)

    async with serving(engine_of()) as service:
        service.events.listen(look)
        all_right(await read_choices(service.submit_all(group)), group)
    assert most == 9 + 4 * 2, "9 blocks that all share; of each its copy of the tenth, and one for its answer"


async def test_the_same_prompt_once_more_is_found_at_once() -> None:
    group, later = sampled(1, 2, rows=40), sampled(3, 2, rows=40)
    async with serving(engine_of()) as service:
        await read_choices(service.submit_all(group))
        again = tuple(attrs.evolve(one, prompt=group[0].prompt, keys=None) for one in later)
        choices = service.submit_all(again)
        answers = await read_choices(choices)
        assert [handle.usage.cached_tokens for handle in choices] == [39, 39]
    all_right(answers, again)


@pytest.mark.parametrize("depth", [1, 2])
async def test_pictures_are_encoded_once(depth: int) -> None:
    """The rows of the pictures are in the shared prefix, so that further choices need none. One that ends the prompt is
    computed again with its rows from the encoder's cache."""
    for gap, images in ((2, 2), (0, 1)):
        group = sampled(1, 3, rows=0 if gap == 0 else 60, images=images)
        if gap == 0:
            span = group[0].prompt.spans[0]
            end = span.start + span.length
            prompt = group[0].prompt
            cut = attrs.evolve(
                prompt,  # type: ignore[misc]
                token_ids=prompt.token_ids[:end],
                positions=prompt.positions[:, :end],
            )
            group = tuple(attrs.evolve(one, prompt=cut, keys=None) for one in group)
        engine = engine_of()
        async with serving(engine, depth=depth) as service:
            answers = await read_choices(service.submit_all(group))
            await settled(service)
            assert service.encoder.images_encoded == images
        all_right(answers, group)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("fails", [False, True])
async def test_a_staged_prompt_goes_through_one_pass(depth: int, fails: bool) -> None:
    """On an engine that takes pictures whole the copy for the others is made when the prompt is in its blocks."""
    shape = {"block_size": 16, "max_context": 400, "num_layers": 12, "slice_layers": 4}
    engine = FakeEngine(deepseek_capabilities(**shape), mode=Mode.INLINE)
    group = sampled(1, 3, rows=60, images=1)
    if fails:
        engine.fail_work(WorkKind.CAPTURE)
    async with serving(engine, depth=depth) as service:
        choices = service.submit_all(group)
        answers = await read_choices(choices)
        await settled(service)
        cached = [handle.usage.cached_tokens for handle in choices]
        assert cached == ([0, 0, 0] if fails else [0, 59, 59])
        assert fails or service.loop.metrics.passes == 1
        assert service.encoder.images_encoded == 1
    all_right(answers, group)


# -- when it cannot be shared ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("kind", [WorkKind.CAPTURE, WorkKind.ADOPT])
async def test_a_copy_that_fails_costs_time_alone(kind: WorkKind, depth: int) -> None:
    engine, group = engine_of(), sampled(1, 3, rows=40)
    engine.fail_work(kind)
    async with serving(engine, depth=depth) as service:
        all_right(await read_choices(service.submit_all(group)), group)


async def test_without_a_prefix_cache_nobody_waits_for_anybody() -> None:
    group = sampled(1, 3, rows=40)
    async with serving(engine_of(), prefix_bytes=0) as service:
        all_right(await read_choices(service.submit_all(group)), group)
        await settled(service)
        assert all("following" not in path_of(service, one.id) for one in group)
        assert service.loop.metrics.rows == 3 * (40 + 7)


async def test_a_prompt_of_one_token_is_not_waited_for() -> None:
    group = choices_of(attrs.evolve(ask(1, temperature=1.0), prompt=make_prompt(1, 1, gap=1)), 3)
    async with serving(engine_of()) as service:
        all_right(await read_choices(service.submit_all(group)), group)
        assert all("following" not in path_of(service, one.id) for one in group)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("when", ["queued", "staging_chunk", "decoding"])
async def test_the_others_go_on_when_the_first_is_cancelled_alone(
    when: str, depth: int, autojump_clock: MockClock
) -> None:
    group = sampled(1, 3, rows=40)
    engine = engine_of(Mode.MANUAL, Times(step=0.1))
    async with serving(engine, depth=depth, prefill_budget=10) as service:
        there = entered(service, "r1", when)
        choices = service.submit_all(group)
        await there.wait()
        choices[0].cancel()
        first, *others = await read_choices(choices)
        assert first.end.reason == "cancelled"
        for asked, answer in zip(group[1:], others, strict=True):
            assert answer.tokens == tuple(expected(asked))


@pytest.mark.parametrize("depth", [1, 2])
async def test_the_others_go_on_when_the_first_fails(depth: int) -> None:
    engine, group = engine_of(), sampled(1, 3, rows=40)
    engine.fail_step(2)
    async with serving(engine, depth=depth, prefill_budget=10) as service:
        first, *others = await read_choices(service.submit_all(group))
        assert first.end.reason == "error"
        for asked, answer in zip(group[1:], others, strict=True):
            assert answer.tokens == tuple(expected(asked))


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("park_bytes", [0, 1 << 30])
async def test_choices_are_parked_and_come_back(park_bytes: int, depth: int) -> None:
    engine = engine_of(Mode.THREAD, block_size=4, num_blocks=40, parking=True)
    groups = [sampled(n, 3, rows=30 + n, tokens=40 + 7 * n, size=4) for n in range(3)]
    found: dict[int, list[Answer]] = {}

    async def one(service: Service, index: int) -> None:
        found[index] = await read_choices(service.submit_all(groups[index]))

    async with serving(engine, depth=depth, park_bytes=park_bytes, prefill_budget=7) as service:
        async with trio.open_nursery() as nursery:
            for index in range(3):
                nursery.start_soon(one, service, index)
        await settled(service)
        check_clean(service, engine)
        metrics = service.loop.metrics
        assert metrics.saves + metrics.drops > 0
    for index, group in enumerate(groups):
        all_right(found[index], group)


# -- the queue ---------------------------------------------------------------------------------------------------------


async def test_choices_keep_their_place_in_the_queue(autojump_clock: MockClock) -> None:
    """A later request has a slot for which the choices have no use yet, and the next ones are theirs."""
    group, later = sampled(1, 3, rows=40), [ask(n) for n in (5, 6, 7)]
    engine = engine_of(Mode.MANUAL, Times(step=0.1), num_slots=2)
    async with serving(engine, prefill_budget=10) as service:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read_choices, service.submit_all(group))
            for one in later:
                nursery.start_soon(read, service.submit(one))
        granted = [r.id for r in service.events if r.machine == "request" and r.event == "slot.granted"]
    assert [set(granted[:2]), set(granted[2:4]), set(granted[4:])] == [
        {"r1", "r5"},
        {"r1/1", "r1/2"},
        {"r6", "r7"},
    ]


async def test_a_group_comes_in_whole_or_not_at_all() -> None:
    engine = engine_of(num_slots=1)
    async with serving(engine, max_queued=3) as service:
        with pytest.raises(
            RequestError, match=r"5 answers are asked for: this server runs 1 .* 3 wait"
        ) as caught:
            service.submit_all(sampled(1, 5))
        assert caught.value.field == "n"
        handle = service.submit(ask(9, tokens=3))
        with pytest.raises(CapacityError, match="the queue is full"):
            service.submit_all(sampled(1, 4))
        assert len(service.requests) == 1
        group = sampled(1, 3)
        choices = service.submit_all(group)
        assert (await read(handle)).end.reason == "length"
        all_right(await read_choices(choices), group)


async def test_what_choices_share_waits_once() -> None:
    """Three times 40 tokens would be too many; a later prompt is counted beside them."""
    async with serving(engine_of(num_slots=1), max_queued_tokens=100) as service:
        running = service.submit(ask(9, tokens=200))
        await entered(service, "r9", "decoding").wait()
        waiting = service.submit(ask(8, rows=20))
        choices = service.submit_all(sampled(1, 3, rows=40))
        with pytest.raises(CapacityError, match="prompts of 60 tokens wait, 80 more would exceed 100"):
            service.submit_all(sampled(2, 2, rows=80))
        for handle in (running, waiting, *choices):
            handle.cancel()
        await settled(service)


@pytest.mark.parametrize("limit", ["queue", "deadline"])
async def test_limits_run_from_the_arrival(limit: str, autojump_clock: MockClock) -> None:
    group = sampled(1, 2, rows=300)
    engine = engine_of(Mode.MANUAL, Times(step=0.5))
    if limit == "deadline":
        group = tuple(attrs.evolve(one, timeout=6.0) for one in group)
    async with serving(
        engine, prefill_budget=10, queue_timeout=5.0 if limit == "queue" else 300.0
    ) as service:
        choices = service.submit_all(group)
        at = trio.current_time()
        while choices[1].end is None:
            await choices[0].arrival()
        waited = trio.current_time() - at
        end = choices[1].end
        assert waited == pytest.approx(5.0 if limit == "queue" else 6.0)
        assert isinstance(end.error, CapacityError if limit == "queue" else DeadlineError)
        if limit == "deadline":
            assert "still waited for the prompt that it shares with the first choice" in str(end.error)
        assert path_of(service, "r1/1")[:2] == ["following", "ending_failed"]
        for handle in choices:
            handle.cancel()


async def test_choices_without_a_slot_are_sent_away_when_the_server_drains(autojump_clock: MockClock) -> None:
    group = sampled(1, 2, rows=40)
    async with serving(engine_of(Mode.MANUAL, Times(step=0.1)), prefill_budget=10) as service:
        there = entered(service, "r1", "staging_chunk")
        choices = service.submit_all(group)
        await there.wait()
        service.drain()
        first, second = await read_choices(choices)
    assert first.tokens == tuple(expected(group[0]))
    assert isinstance(second.end.error, CapacityError) and "shutting down" in str(second.end.error)


# -- the client --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("seed", range(4))
async def test_groups_under_pressure_with_clients_that_leave_are_exact(seed: int, depth: int) -> None:
    rng = random.Random(seed)
    engine = engine_of(
        Mode.THREAD, num_blocks=60, block_size=4, bytes_per_snapshot=100, bytes_per_token=2, parking=True
    )

    async def client(service: Service, name: int) -> None:
        asked = {
            "rows": 10 + rng.randrange(60),
            "tokens": 5 + rng.randrange(30),
            "images": rng.randrange(3) == 0,
        }
        group = sampled(name, 1 + rng.randrange(4), size=4, **asked)
        leaves = rng.randrange(60) if rng.random() < 0.4 else None
        choices = service.submit_all(group)
        if rng.random() < 0.2:
            choices[rng.randrange(len(group))].cancel()
        for one, answer in zip(group, await read_choices(choices, leaves), strict=True):
            assert answer.tokens == tuple(expected(one))[: len(answer.tokens)]
            assert answer.end.reason in ("length", "cancelled"), answer.end

    async with serving(engine, depth=depth, prefill_budget=7, prefix_bytes=900, park_bytes=700) as service:
        async with trio.open_nursery() as nursery:
            for name in range(12):
                nursery.start_soon(client, service, name)
        await settled(service)
        check_clean(service, engine)


async def test_a_client_that_does_not_read_holds_each_choice_to_its_buffer(autojump_clock: MockClock) -> None:
    group, other = sampled(1, 2, rows=10, tokens=60), ask(5, tokens=60)
    engine = engine_of(Mode.MANUAL, Times(step=0.1))
    async with serving(engine, buffer_limit=8, client_timeout=30.0) as service:
        choices = service.submit_all(group)
        assert (await read_all(service, [other]))[0].tokens == tuple(expected(other))
        generated = [request.num_generated for request in service.requests.values() if request.order < 2]
        assert all(8 <= count <= 10 for count in generated), generated
        all_right(await read_choices(choices), group)
        silent = service.submit_all(
            tuple(attrs.evolve(one, id=f"{one.id} again", keys=None) for one in group)
        )
        await settled(service)
        assert {handle.end.reason for handle in silent if handle.end} == {"cancelled"}
