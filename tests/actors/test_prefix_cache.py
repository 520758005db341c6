"""Prompts that begin like earlier ones start where those were captured, and no answer shows it."""

from __future__ import annotations

import random
from typing import Any

import attrs
import numpy as np
import pytest
import trio

from luce.actors.service import Service
from luce.actors.submission import Submission
from luce.engines.fake.engine import FakeEngine, FakeTicket, Mode, fake_capabilities
from luce.engines.fake.pictures import make_picture
from luce.engines.seam import SampledToken, StepPlan, WorkKind
from luce.scheduling.plan import plan
from luce.scheduling.state import Decision, LoopState
from luce.trace.events import EventRecord
from tests.actors.harness import (
    Answer,
    Prompt,
    ask,
    check_clean,
    expected,
    make_service,
    read,
    read_all,
    serving,
    settled,
)

pytestmark = pytest.mark.trio


def engine_of(mode: Mode = Mode.INLINE, **changes: Any) -> FakeEngine:
    return FakeEngine(fake_capabilities(**({"block_size": 16} | changes)), mode=mode)


def longer(asked: Submission, rows: list[int], **changes: Any) -> Submission:
    """The same prompt with more rows behind it."""
    before = asked.prompt
    ids = np.concatenate([before.token_ids, np.array(rows, np.int32)])
    more = np.arange(len(before.token_ids), len(ids), dtype=np.int32) + np.int32(before.rope_delta)
    positions = np.concatenate([before.positions, np.broadcast_to(more, (3, len(more)))], axis=1)
    prompt = Prompt(ids, positions.astype(np.int32), before.rope_delta, before.spans)
    return attrs.evolve(asked, prompt=prompt, **changes)


def cut(prompt: Prompt, rows: int) -> Prompt:
    """Its first rows, without pictures."""
    return Prompt(prompt.token_ids[:rows], prompt.positions[:, :rows], prompt.rope_delta, ())


def next_turn(asked: Submission, answer: list[SampledToken], rows: int = 5) -> Submission:
    """What a chat client sends next: all so far, its answer, and a few rows more."""
    turn = [token.token for token in answer] + [(7 * n) % 250 for n in range(rows)]
    return longer(asked, turn)


async def answer_to(service: Service, asked: Submission) -> tuple[Answer, int]:
    """The answer and how many of its prompt's tokens came from the cache."""
    handle = service.submit(asked)
    return await read(handle), handle.usage.cached_tokens


class FailsWithCopies(FakeEngine):
    """The first step that holds a capture fails as a whole, its copy made."""

    failed = 0

    def launch(self, plan: StepPlan) -> FakeTicket:
        if not self.failed and any(item.kind is WorkKind.CAPTURE for item in plan.work):
            self.failed = plan.number
            self.fail_step(plan.number)
        return super().launch(plan)


@pytest.mark.parametrize("depth", [1, 2])
async def test_a_capture_of_a_step_that_failed_is_given_back(depth: int) -> None:
    engine = FailsWithCopies(fake_capabilities(block_size=16), mode=Mode.INLINE)
    async with serving(engine, depth=depth) as service:
        answers = await read_all(service, [ask(n, rows=40, tokens=6) for n in range(3)])
        assert engine.failed and any(answer.end.reason == "error" for answer in answers)
        await settled(service)
        index = service.loop.memory.cache.index
        assert engine.stored_bytes == index.device_bytes, "the copy was made, and nobody knows of it"


async def test_the_entries_steps_are_in_the_event_stream() -> None:
    async with serving(engine_of()) as service:
        asked = ask(1, rows=40, tokens=5)
        for _ in range(2):
            await answer_to(service, asked)
            await settled(service)
        steps = [(record.id, record.event) for record in service.events if record.machine == "prefix_entry"]
    assert steps == [(0, "filled"), (1, "filled"), (0, "lock"), (0, "unlock")]


@pytest.mark.parametrize("mode", [Mode.INLINE, Mode.THREAD])
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("rows", [1, 2, 15, 16, 17, 31, 32, 33, 48, 64, 65, 200])
async def test_the_same_prompt_again_and_then_one_more(rows: int, depth: int, mode: Mode) -> None:
    """At least one token is computed; a prompt that is a whole number of blocks is no exception (fault B53)."""
    async with serving(engine_of(mode), depth=depth) as service:
        asked = ask(1, rows=rows, tokens=5)
        first, cold = await answer_to(service, asked)
        await settled(service)
        again, hit = await answer_to(service, asked)
        await settled(service)
        more = longer(asked, [3])
        grown, deeper = await answer_to(service, more)
    assert first.tokens == again.tokens == tuple(expected(asked))
    assert grown.tokens == tuple(expected(more))
    assert (cold, hit, deeper) == (0, last := len(asked.prompt.token_ids) - 1, last)


async def test_growing_chats_advance_every_turn() -> None:
    """Two chats in turns, four snapshots, 16 turns: each goes on from its own last turn's end (fault B58)."""
    engine = engine_of(bytes_per_snapshot=100, num_blocks=512)
    async with serving(engine, prefix_bytes=8 * 100) as service:
        chats = {name: ask(name, rows=20, tokens=6) for name in (1, 2)}
        reached = {1: 0, 2: 0}
        for turn in range(16):
            for name, asked in chats.items():
                answer, cached = await answer_to(service, asked)
                assert answer.tokens == tuple(expected(asked))
                if turn:
                    assert cached > reached[name], (turn, name)
                reached[name] = cached
                await settled(service)
                chats[name] = next_turn(asked, list(answer.tokens))
        assert service.loop.memory.cache.index.stats.evictions > 0


async def test_another_picture_is_another_prefix() -> None:
    """Same ids, other pixels (fault B02); the same picture again is found (B10), also behind a longer prompt."""
    engine = engine_of()
    async with serving(engine) as service:
        first = ask(1, rows=40, images=1)
        other = attrs.evolve(first, images=(make_picture(b"another one"),))
        assert (first.prompt.token_ids == other.prompt.token_ids).all()
        for asked, at_least, at_most in [
            (first, 0, 0),
            (other, 0, first.prompt.spans[0].start),
            (first, 39, 39),
        ]:
            answer, cached = await answer_to(service, asked)
            assert answer.tokens == tuple(expected(asked))
            assert at_least <= cached <= at_most
            await settled(service)
    assert expected(first) != expected(other)


async def test_a_hit_never_ends_inside_a_picture() -> None:
    engine = engine_of()
    asked = ask(1, rows=60, images=3)
    async with serving(engine, prefill_budget=7) as service:
        await answer_to(service, asked)
        await settled(service)
        for entry in service.loop.memory.cache.index:
            for span in asked.prompt.spans:
                assert not span.start < entry.position < span.start + span.length
        shorter = attrs.evolve(
            asked,
            prompt=attrs.evolve(
                asked.prompt,
                token_ids=asked.prompt.token_ids[: asked.prompt.spans[1].start + 1],
                positions=asked.prompt.positions[:, : asked.prompt.spans[1].start + 1],
                spans=asked.prompt.spans[:1],
            ),
            images=asked.images[:1],
        )
        answer, cached = await answer_to(service, shorter)
    assert answer.tokens == tuple(expected(shorter))
    assert cached >= asked.prompt.spans[0].start + asked.prompt.spans[0].length


async def test_salts_share_nothing() -> None:
    async with serving(engine_of()) as service:
        asked = ask(1, rows=40)
        await answer_to(service, attrs.evolve(asked, cache_salt=b"a"))
        await settled(service)
        assert (await answer_to(service, attrs.evolve(asked, cache_salt=b"b")))[1] == 0
        await settled(service)
        assert (await answer_to(service, attrs.evolve(asked, cache_salt=b"a")))[1] == 39


async def test_without_a_budget_nothing_is_kept() -> None:
    async with serving(engine_of(), prefix_bytes=0) as service:
        for turn in range(2):
            assert (await answer_to(service, attrs.evolve(ask(1, rows=40), id=f"turn {turn}")))[1] == 0
        await settled(service)
        assert len(service.loop.memory.cache.index) == 0


@pytest.mark.parametrize("depth", [1, 2])
async def test_rows_behind_a_place_to_capture_wait_for_it(depth: int) -> None:
    """With two steps in flight, the chunk behind such a place must not be launched before the copy: it commits rows."""
    engine = engine_of()
    chat = ask(2, rows=400)
    chat = attrs.evolve(chat, prompt=attrs.evolve(chat.prompt, turn_ends=(100, 200, 300)))
    async with serving(engine, depth=depth, prefill_budget=300) as service:
        answers = await read_all(service, [ask(1, rows=2, tokens=30), chat])
        await settled(service)
        kept = {entry.position for entry in service.loop.memory.cache.index}
        again, cached = await answer_to(service, attrs.evolve(chat, prompt=cut(chat.prompt, 301)))
        assert {100, 200, 300} <= kept and cached == 300
    assert answers[1].tokens == tuple(expected(chat))
    assert again.end.reason == "length"


@pytest.mark.parametrize("kind", [WorkKind.CAPTURE, WorkKind.ADOPT])
@pytest.mark.parametrize("depth", [1, 2])
async def test_a_copy_that_fails_loses_nothing_but_itself(kind: WorkKind, depth: int) -> None:
    engine = engine_of(Mode.THREAD)
    asked = ask(1, rows=40, images=1)
    async with serving(engine, depth=depth) as service:
        if kind is WorkKind.CAPTURE:
            engine.fail_work(kind)
        await answer_to(service, asked)
        await settled(service)
        if kind is WorkKind.ADOPT:
            engine.fail_work(kind)
        answers = await read_all(service, [asked, ask(2, rows=33)])
        await settled(service)
        check_clean(service, engine)
    assert answers[0].tokens == tuple(expected(asked))
    assert answers[1].tokens == tuple(expected(ask(2, rows=33)))


@pytest.mark.parametrize("recomputable", [True, False])
@pytest.mark.parametrize("depth", [1, 2])
async def test_the_client_leaves_while_a_prefix_turns_out_to_be_no_good(
    depth: int, recomputable: bool
) -> None:
    """Its cancel is in the mailbox, not yet read, when the loop hands out the failure (found by tests/model)."""
    engine = engine_of(recomputable=recomputable)
    asked, again = ask(1, rows=40), attrs.evolve(ask(1, rows=40), id="again")
    async with serving(engine, depth=depth) as service:
        await answer_to(service, asked)
        await settled(service)
        engine.fail_work(WorkKind.ADOPT)
        handle = service.submit(again)
        left: list[int] = []

        def leave(record: EventRecord) -> None:
            if (record.machine, record.event) == ("loop", "step.done"):
                work = service.loop.flights[0].plan.work
                if any(item.kind is WorkKind.ADOPT for item in work):
                    left.append(record.seq)
                    handle.cancel()

        service.events.listen(leave)
        answer = await read(handle)
        await settled(service)
    assert left and answer.end.reason == "cancelled"


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("seed", range(6))
async def test_chats_under_pressure_with_cancels_are_exact(seed: int, depth: int) -> None:
    """Shared roots, growing chats, pictures, a small pool, little room for snapshots and for parked slots, clients
    that leave: every token is that of the request alone."""
    rng = random.Random(seed)
    engine = engine_of(Mode.THREAD, num_blocks=33, block_size=4, bytes_per_snapshot=100, bytes_per_token=2)
    roots = [ask(n, rows=18 + n, tokens=8, images=n % 2) for n in range(3)]
    hits = 0

    async def chat(service: Service, name: int) -> None:
        nonlocal hits
        asked = longer(roots[name % 3], [name], params=ask(name, tokens=8 + rng.randrange(20)).params)
        for turn in range(4):
            handle = service.submit(attrs.evolve(asked, id=f"{name}/{turn}"))
            leaves = rng.random() < 0.2
            answer = await read(handle, rng.randrange(6) if leaves else None)
            hits += handle.usage.cached_tokens > 0
            assert answer.tokens == tuple(expected(asked))[: len(answer.tokens)]
            if answer.end.reason != "length":
                assert leaves, answer.end
                return
            asked = next_turn(asked, list(answer.tokens), rows=1 + rng.randrange(5))
            if len(asked.prompt.token_ids) > 95:
                return

    async with serving(engine, depth=depth, prefill_budget=7, prefix_bytes=900, park_bytes=700) as service:
        async with trio.open_nursery() as nursery:
            for name in range(12):
                nursery.start_soon(chat, service, name)
        await settled(service)
        check_clean(service, engine)
        stats = service.loop.memory.cache.index.stats
    assert hits > 0 and stats.evictions > 0, (hits, stats)


@pytest.mark.unrecorded  # blocks have a price of its own
async def test_a_grant_whose_price_has_risen_waits_for_the_next_plan() -> None:
    """The grants before it in one decision may have taken cached blocks that it was to share."""
    granted: list[tuple[int, ...]] = []
    risen = False

    def watching(state: LoopState) -> Decision:
        nonlocal risen
        decision = plan(state)
        if decision.grants:
            granted.append(tuple(grant.key for grant in decision.grants))
        risen = len(decision.grants) == 2
        return decision

    engine = engine_of()
    service = make_service(engine, watching)
    price = service.loop.memory.entry_cost
    service.loop.memory.entry_cost = (  # type: ignore[method-assign]
        lambda request: 10**6 if risen and request.order == 1 else price(request)
    )
    asked = [ask(n, rows=20, tokens=5) for n in range(2)]
    async with trio.open_nursery() as nursery:
        await nursery.start(service.run)
        answers = await read_all(service, asked)
        assert granted == [(0, 1), (1,)]
        assert [list(answer.tokens) for answer in answers] == [expected(one) for one in asked]
        service.drain()
        await service.stopped()
    check_clean(service, engine)
