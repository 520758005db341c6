"""Requests with a time limit: wherever it runs out they end there, say how far they got, and hold nothing. In virtual
time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

from luce.actors.submission import Submission
from luce.engines.fake.engine import FakeEngine, Mode, fake_capabilities
from luce.engines.fake.pictures import make_picture
from luce.engines.fake.times import Times
from luce.errors import DeadlineError
from luce.trace.events import EventRecord
from tests.actors.harness import Answer, ask, expected, make_prompt, path_of, read, serving, settled

pytestmark = pytest.mark.trio

TIMES = Times(step=0.1, patch=0.5, work=0.3)
TIGHT = {"num_slots": 2, "block_size": 4, "num_blocks": 16, "parking": True}
"""Two of 8 rows and 50 tokens do not fit."""


def about_a_picture(gap: int) -> Submission:
    """``gap`` rows of text stand before it."""
    picture = make_picture(b"chart")
    return attrs.evolve(ask(1, images=1), prompt=make_prompt(1, 10, [picture], gap), images=(picture,))


@attrs.frozen
class Scene:
    """What the looked-at request meets."""

    asked: Submission
    before: tuple[Submission, ...] = ()
    engine: dict[str, Any] = attrs.field(factory=lambda: {"num_slots": 1})
    options: dict[str, Any] = attrs.field(factory=dict)
    reads: bool = True


LONG = ask(1, rows=8, tokens=50)
OLDER = (ask(0, rows=8, tokens=50),)
SCENES = {
    "queued": (Scene(ask(1), (ask(0, tokens=30),)), "still waited for a free slot"),
    "encoding": (
        Scene(about_a_picture(0)),
        r"0 of \d+ prompt tokens were computed, the next ones waited for a pic",
    ),
    "staging_chunk": (Scene(ask(1, rows=40), options={"prefill_budget": 4}), r"\d+ of 40 prompt tokens"),
    "staging_wait_rows": (
        Scene(about_a_picture(2)),
        r"2 of \d+ prompt tokens were computed, the next ones waited",
    ),
    "decoding": (Scene(ask(1, tokens=30)), r"\d+ of at most 30 tokens were generated"),
    "parked_saved": (
        Scene(LONG, OLDER, TIGHT, {"park_bytes": 1 << 30}),
        r"\d+ of at most 50 tokens were generated, and it was parked",
    ),
    "parked_dropped": (
        Scene(LONG, OLDER, TIGHT, {"park_bytes": 0}),
        r"\d+ of at most 50 tokens were generated, and it was parked",
    ),
    "stalled": (
        Scene(ask(1, tokens=60), options={"buffer_limit": 8, "client_timeout": 30.0}, reads=False),
        r"\d+ of at most 60 tokens were generated, and its client did not read",
    ),
}


async def play(scene: Scene, limit: float | None) -> tuple[list[EventRecord], Answer | None]:
    """The looked-at request's records from its submission on, and its answer. The others get theirs, and nothing is
    left behind."""
    engine = FakeEngine(fake_capabilities(**scene.engine), mode=Mode.MANUAL, times=TIMES)
    answers: dict[str, Answer] = {}
    async with serving(engine, **scene.options) as service, trio.open_nursery() as nursery:

        async def client(submission: Submission) -> None:
            answers[submission.id] = await read(service.submit(submission))

        for other in scene.before:
            nursery.start_soon(client, other)
        await trio.sleep(0.001)
        asked = attrs.evolve(scene.asked, timeout=limit)
        if scene.reads:
            nursery.start_soon(client, asked)
        else:
            handle = service.submit(asked)
        await trio.testing.wait_all_tasks_blocked()
        await settled(service)
        if not scene.reads:
            answers[asked.id] = await read(handle)
        assert len(service.timers) == 0
        records = [r for r in service.events if r.machine == "request" and r.id == asked.id]
    for other in scene.before:
        assert answers[other.id].tokens == tuple(expected(other))
    return records, answers[asked.id]


def stay(records: Sequence[EventRecord], state: str) -> tuple[float, float]:
    """From when to when a request was first in that state, on its own clock."""
    inside = [number for number, record in enumerate(records) if state in record.configuration]
    assert inside, f"never in {state}"
    left = next(r for r in records[inside[0] :] if state not in r.configuration)
    return records[inside[0]].t - records[0].t, left.t - records[0].t


@pytest.mark.parametrize("state", SCENES)
async def test_it_runs_out_in_every_state(state: str, autojump_clock: MockClock) -> None:
    scene, said = SCENES[state]
    records, _ = await play(scene, None)
    assert not any(record.event == "deadline.expired" for record in records)
    entered, left = stay(records, state)
    assert left - entered > 0.04, "too short a stay to meet it there"
    limit = (entered + left) / 2

    records, answer = await play(scene, limit)
    at = next(number for number, record in enumerate(records) if record.event == "deadline.expired")
    assert state in records[at - 1].configuration
    assert "ending_failed" in records[at].configuration
    assert records[at].t - records[0].t == pytest.approx(limit)
    assert records[-1].configuration == ("failed",)
    assert answer is not None and isinstance(answer.end.error, DeadlineError)
    assert answer.tokens == tuple(expected(scene.asked, len(answer.tokens)) if answer.tokens else ())
    match_said(answer.end.error, said, limit)


def match_said(error: DeadlineError, said: str, limit: float) -> None:
    with pytest.raises(DeadlineError, match=rf"not complete {limit:g} s after its request arrived.*{said}"):
        raise error


def engine_of() -> FakeEngine:
    return FakeEngine(fake_capabilities(num_slots=1), mode=Mode.MANUAL, times=Times(step=0.1))


async def test_a_limit_that_is_kept_changes_nothing(autojump_clock: MockClock) -> None:
    asked = attrs.evolve(ask(1), timeout=50.0)
    async with serving(engine_of()) as service:
        handle = service.submit(asked)
        assert len(service.timers) > 0
        assert (await read(handle)).tokens == tuple(expected(ask(1)))
        await settled(service)
        assert len(service.timers) == 0
        await trio.sleep(100)
        assert path_of(service, "r1")[-1] == "finished"


async def test_without_a_limit_no_timer_is_armed(autojump_clock: MockClock) -> None:
    async with serving(engine_of()) as service:
        for timeout, armed in (None, {"queue.expired"}), (9.0, {"queue.expired", "deadline.expired"}):
            handle = service.submit(attrs.evolve(ask(1), timeout=timeout))
            [order] = service.requests
            assert {event for owner, event in service.timers._due if owner == order} == armed
            await read(handle)
            await settled(service)


@pytest.mark.parametrize(
    ("asked", "most", "limit", "who"),
    [
        (2.0, None, 2.0, "timeout"),
        (None, 3.0, 3.0, "--request-timeout"),
        (2.0, 3.0, 2.0, "timeout"),
        (4.0, 3.0, 3.0, "--request-timeout"),
    ],
)
async def test_the_shorter_of_both_limits_counts(
    asked: float | None, most: float | None, limit: float, who: str, autojump_clock: MockClock
) -> None:
    async with serving(engine_of(), request_timeout=most) as service:
        started = trio.current_time()
        answer = await read(service.submit(attrs.evolve(ask(1, tokens=100), timeout=asked)))
        assert trio.current_time() - started == pytest.approx(limit)
        assert f"({who})" in str(answer.end.error)


@pytest.mark.parametrize("late", [1.5, 2.0, 7.0])
async def test_it_counts_from_the_arrival(late: float, autojump_clock: MockClock) -> None:
    """What was spent on the body and its preparation is gone; one that comes too late for its limit ends at once."""
    await trio.sleep(10)
    async with serving(engine_of()) as service:
        started = trio.current_time()
        asked = attrs.evolve(ask(1, tokens=100), timeout=2.0)
        answer = await read(service.submit(asked, arrived=started - late))
        assert isinstance(answer.end.error, DeadlineError)
        assert trio.current_time() - started == pytest.approx(max(2.0 - late, 0.0))
