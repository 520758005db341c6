"""Requests with pictures on an engine that takes pictures whole: staged passes as their requests see them."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

from luce.actors.service import Service
from luce.actors.submission import Submission
from luce.engines.fake.engine import FakeEngine, Mode, deepseek_capabilities
from luce.engines.fake.times import Times
from luce.engines.seam import WorkKind
from luce.errors import DeviceError, RequestError
from luce.trace.events import EventRecord
from tests.actors.harness import (
    ask,
    expected,
    make_prompt,
    path_of,
    read,
    read_all,
    serving,
    settled,
)
from tests.actors.test_prefix_cache import answer_to, cut, longer, next_turn

pytestmark = pytest.mark.trio

TIMES = Times(step=0.1, layer=0.1, imported=0.1, picture=1.0)


def engine_of(mode: Mode = Mode.INLINE, times: Times | None = None, **changes: Any) -> FakeEngine:
    shape = {"block_size": 16, "max_context": 400, "num_layers": 12, "slice_layers": 4}
    return FakeEngine(deepseek_capabilities(**(shape | changes)), mode=mode, times=times)


async def reached(service: Service, request: str, phase: str) -> None:
    """Return when the request enters this state."""
    there = trio.Event()

    def look(record: EventRecord) -> None:
        if record.machine == "request" and record.id == request and phase in record.configuration:
            there.set()

    service.events.listen(look)
    await there.wait()


@pytest.mark.parametrize("mode", [Mode.INLINE, Mode.THREAD])
@pytest.mark.parametrize("depth", [1, 2])
async def test_the_way_through_the_chart(depth: int, mode: Mode) -> None:
    asked = ask(1, rows=40, images=2)
    async with serving(engine_of(mode), depth=depth, staged_rows_alone=10) as service:
        [answer] = await read_all(service, [asked])
        assert list(answer.tokens) == expected(asked)
        await settled(service)
        path = path_of(service, "r1")
        assert path[0] == "queued"
        middle = [state for state in path if state not in ("queued", "encoding", "staging_wait_rows")]
        passes = middle.count("staging_in_pass")
        assert middle[: 2 * passes] == ["staging_ready", "staging_in_pass"] * passes and passes >= 3
        assert middle[2 * passes :] == ["staging_importing", "decoding", "ending_finished", "finished"]


@pytest.mark.parametrize("depth", [1, 2])
async def test_many_at_once_and_each_as_alone(depth: int) -> None:
    asked = [ask(n, rows=20 + 13 * n, images=n % 4, tokens=6 + n) for n in range(12)]
    async with serving(engine_of(Mode.THREAD), depth=depth, staged_rows=24) as service:
        answers = await read_all(service, asked)
        assert [list(answer.tokens) for answer in answers] == [expected(one) for one in asked]
        assert service.loop.metrics.passes > 3


@pytest.mark.parametrize(
    "phase", ["encoding", "staging_ready", "staging_in_pass", "staging_importing", "decoding"]
)
@pytest.mark.parametrize("depth", [1, 2])
async def test_cancelled_in_every_phase(autojump_clock: MockClock, phase: str, depth: int) -> None:
    """Nothing is left behind, and who shared the pass gets what it gets alone."""
    gone, stays, text = ask(1, rows=40, images=1, tokens=20), ask(2, rows=50, images=2), ask(3, tokens=60)
    async with serving(engine_of(Mode.MANUAL, TIMES), depth=depth) as service:
        others = [service.submit(text), service.submit(stays)]
        handle = service.submit(gone)
        await reached(service, "r1", phase)
        handle.cancel()
        assert (await read(handle)).end.reason == "cancelled"
        answers = [await read(other) for other in others]
        assert [list(answer.tokens) for answer in answers] == [expected(text), expected(stays)]
        await settled(service)


async def test_a_failing_step_takes_those_in_the_pass_and_nobody_else(autojump_clock: MockClock) -> None:
    staged, text = [ask(n, rows=40, images=1) for n in (1, 2)], ask(3, tokens=40)
    engine = engine_of(Mode.MANUAL, TIMES)
    async with serving(engine) as service:
        handles = [service.submit(one) for one in staged]
        await reached(service, "r2", "staging_in_pass")
        other = service.submit(text)
        engine.fail_step(service.loop._number)
        for handle in handles:
            end = (await read(handle)).end
            assert end.reason == "error" and isinstance(end.error, DeviceError)
        assert list((await read(other)).tokens) == expected(text)


async def test_a_copy_into_the_blocks_that_fails_is_one_requests_failure() -> None:
    first, second = ask(1, rows=40, images=1), ask(2, rows=40, images=1)
    engine = engine_of()
    async with serving(engine) as service:
        engine.fail_work(WorkKind.IMPORT, "injected: no memory")
        one, two = await read_all(service, [first, second])
        assert one.end.reason == "error" and "no memory" in str(one.end.error) and not one.tokens
        assert list(two.tokens) == expected(second)


async def test_prompts_that_no_pass_can_take_are_refused_at_once() -> None:
    async with serving(engine_of()) as service:
        good = ask(1, rows=40, images=1)
        ends_in_picture = attrs.evolve(good, prompt=make_prompt(1, 0, good.images, gap=6))
        rows = len(ends_in_picture.prompt.token_ids) - 6
        cut_short = attrs.evolve(ends_in_picture.prompt, token_ids=ends_in_picture.prompt.token_ids[:rows])
        cut_short = attrs.evolve(cut_short, positions=cut_short.positions[:, :rows])
        with pytest.raises(RequestError, match="ends with a picture") as refused:
            service.submit(attrs.evolve(good, prompt=cut_short))
        assert refused.value.field == "messages"
        assert list((await read(service.submit(good))).tokens) == expected(good)


# -- beside the prefix cache ------------------------------------------------------------------------------------------


async def first_turn(service: Service) -> Submission:
    """An answered question about a picture, and what its client asks next."""
    asked = ask(1, rows=40, images=1)
    answer, cached = await answer_to(service, asked)
    assert list(answer.tokens) == expected(asked) and cached == 0
    await settled(service)  # its last state is copied once it has ended
    return next_turn(asked, expected(asked))


@pytest.mark.parametrize("depth", [1, 2])
async def test_a_chat_about_a_picture_goes_on_from_its_last_turn(depth: int) -> None:
    """The rows behind the picture are ordinary ones, and need no pass."""
    async with serving(engine_of(), depth=depth) as service:
        following = await first_turn(service)
        passes = service.loop.metrics.passes
        answer, cached = await answer_to(service, following)
        assert list(answer.tokens) == expected(following)
        assert cached >= 40 and service.loop.metrics.passes == passes


async def test_a_prefix_that_ends_before_a_picture_is_left_alone() -> None:
    """Passes start at the first row: their cache holds all of the prompt."""
    async with serving(engine_of()) as service:
        asked = ask(1, rows=60, images=1)
        text = attrs.evolve(asked, id="text", prompt=cut(asked.prompt, 2), images=())
        await answer_to(service, longer(text, list(range(30))))
        answer, cached = await answer_to(service, asked)
        assert list(answer.tokens) == expected(asked) and cached == 0


@pytest.mark.parametrize("depth", [1, 2])
async def test_a_prefix_that_is_no_good_is_replaced_by_a_pass(depth: int) -> None:
    """Nothing is lost: what cannot be computed again has not been computed once."""
    engine = engine_of()
    async with serving(engine, depth=depth) as service:
        following = await first_turn(service)
        engine.fail_work(WorkKind.ADOPT, "injected: no memory")
        passes = service.loop.metrics.passes
        answer, _ = await answer_to(service, following)
        assert list(answer.tokens) == expected(following)
        assert service.loop.metrics.passes > passes
        assert service.loop.memory.cache.index.stats.broken == 1
