"""Constrained answers on the fake engine: the same tokens in company, at both depths, parked and cached; and nobody
waits for a mask but its own request."""

from __future__ import annotations

import threading
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

from luce.actors.submission import Submission
from luce.engines.fake.engine import FakeEngine, Mode, fake_capabilities
from luce.engines.fake.times import Times
from luce.engines.seam import SegmentKind
from luce.errors import LuceError, RequestError
from tests.actors.harness import Answer, ask, check_clean, expected, path_of, read, read_all, serving, settled
from tests.actors.rules import ByRule

pytestmark = pytest.mark.trio

# From the first token; after free ones; closed by force in between; now and then.
NEEDS = ["c", "fffffffffffffffcccccccccc", "fffffrrrc", "fffcf", "rfc", "f"]


def held(name: int, needs: str, **settings: Any) -> Submission:
    tokens = settings.pop("tokens", 20 + 13 * name % 60)
    rule = ByRule(
        needs,
        **{key: settings.pop(key) for key in [*settings] if key in ("fails_at", "ends_at", "gate", "broken")},
    )
    submission = ask(name, rows=10 + 7 * name % 23, tokens=tokens, images=name % 2, **settings)
    return attrs.evolve(submission, constraint=rule)


def crowd() -> list[Submission]:
    return [
        *(held(name, NEEDS[name % len(NEEDS)], temperature=float(name % 3 == 0)) for name in range(8)),
        *(ask(name, rows=12, tokens=60) for name in (8, 9)),
    ]


def all_right(answers: list[Answer], submissions: list[Submission]) -> None:
    for submission, answer in zip(submissions, answers, strict=True):
        assert answer.end.reason == "length", answer.end
        assert answer.tokens == tuple(expected(submission)), submission.id


async def serve(
    engine: FakeEngine, submissions: list[Submission], **options: Any
) -> tuple[list[Answer], Any]:
    """Answers of copies: a request takes its constraint for its own."""
    fresh = [
        attrs.evolve(one, constraint=one.constraint.fork()) if one.constraint else one for one in submissions
    ]
    async with serving(engine, **options) as service:
        answers = await read_all(service, fresh)
        await settled(service)
        check_clean(service, engine)
        return answers, service.loop.metrics


async def test_the_rules_say_other_tokens_than_the_model() -> None:
    """The trap: an answer whose masks are forgotten, or one too late, differs."""
    for name in range(5):
        submission = held(name, NEEDS[name])
        free = attrs.evolve(submission, constraint=None)
        assert expected(submission) != expected(free)


@pytest.mark.parametrize("mode", [Mode.INLINE, Mode.THREAD])
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("budget", [1, 7, None])
async def test_answers_are_what_they_are_alone(mode: Mode, depth: int, budget: int | None) -> None:
    submissions = crowd()
    answers, _ = await serve(
        FakeEngine(fake_capabilities(num_slots=6), mode=mode), submissions, prefill_budget=budget, depth=depth
    )
    all_right(answers, submissions)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("park_bytes", [0, 1 << 30], ids=["dropped", "saved"])
@pytest.mark.parametrize("mode", [Mode.INLINE, Mode.THREAD])
async def test_parked_answers_go_on_under_their_masks(mode: Mode, depth: int, park_bytes: int) -> None:
    submissions = crowd()
    engine = FakeEngine(fake_capabilities(block_size=4, num_blocks=34), mode=mode)
    answers, metrics = await serve(engine, submissions, depth=depth, park_bytes=park_bytes)
    all_right(answers, submissions)
    assert metrics.saves if park_bytes else metrics.drops >= 3, metrics


@pytest.mark.parametrize("depth", [1, 2])
async def test_a_cached_prefix_changes_nothing(depth: int) -> None:
    submission = attrs.evolve(held(4, "c", tokens=12), constraint=ByRule("c"))
    again = attrs.evolve(submission, id="again")
    engine = FakeEngine(mode=Mode.INLINE)
    async with serving(engine, depth=depth) as service:
        for one in (submission, again):
            handle = service.submit(attrs.evolve(one, constraint=ByRule("c")))
            answer = await read(handle)
            assert answer.tokens == tuple(expected(one))
        assert handle.usage.cached_tokens > 0, "the trap: nothing was cached"


async def test_free_tokens_are_launched_ahead_and_masked_ones_are_not() -> None:
    """One request alone, two steps in flight: free rows go on without the host, and of those launched ahead only the
    one before a mask is void."""
    plans = []

    class Spy(FakeEngine):
        def launch(self, plan: Any) -> Any:
            plans.append(plan)
            return super().launch(plan)

    engine = Spy(mode=Mode.MANUAL, times=Times(step=0.01))
    submission = attrs.evolve(ask(1, rows=4, tokens=30), constraint=ByRule("f" * 15 + "c" * 15))
    answers, _ = await serve(engine, [submission], depth=2, prefill_budget=None)
    all_right(answers, [submission])
    decoded = [plan for plan in plans if plan.segments and plan.segments[0].kind is SegmentKind.DECODE]
    starts = [plan.segments[0].start for plan in decoded]
    assert len(starts) == 29 + 1, "one row was void"
    (twice,) = {start for start in starts if starts.count(start) == 2}
    assert twice == 4 + 15 - 1, "the row whose token is the first one under a mask"
    assert [bool(plan.masks) for plan in decoded] == [False] * 15 + [True] * 15


async def test_nobody_waits_for_a_mask_but_its_request() -> None:
    gate = threading.Event()
    engine = FakeEngine(mode=Mode.INLINE)
    try:
        async with serving(engine) as service:
            slow = service.submit(held(1, "c", tokens=5, gate=gate))
            first = await slow.next()
            other = await read(service.submit(ask(2, tokens=40)))
            assert other.tokens == tuple(expected(ask(2, tokens=40)))
            assert slow.completion_tokens == 1, "the trap: it was to wait"
            gate.set()
            rest = await read(slow)
            assert len(first.tokens) + len(rest.tokens) == 5
    finally:
        gate.set()


@pytest.mark.parametrize("end", ["cancel", "deadline"])
async def test_a_request_that_ends_waits_for_the_worker(end: str) -> None:
    """Its client does not."""
    gate = threading.Event()
    engine = FakeEngine(mode=Mode.INLINE)
    try:
        async with serving(engine) as service:
            submission = held(1, "c", tokens=5, gate=gate)
            handle = service.submit(attrs.evolve(submission, timeout=2.0 if end == "deadline" else None))
            await handle.next()
            if end == "cancel":
                handle.cancel()
            answer = await read(handle)
            assert answer.end.reason == ("cancelled" if end == "cancel" else "error")
            await trio.testing.wait_all_tasks_blocked()
            (request,) = service.requests.values()
            assert request.machine.active("mask_held") and not engine.open_slots
            gate.set()
            await settled(service)
    finally:
        gate.set()


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize(
    ("broken", "kind", "says"),
    [
        (lambda: RequestError("out of rules"), RequestError, "out of rules"),
        (lambda: ZeroDivisionError("a bug"), LuceError, "internal error: ZeroDivisionError"),
    ],
)
async def test_a_mask_that_fails_fails_its_request_alone(
    depth: int, broken: Any, kind: type[Exception], says: str
) -> None:
    submissions = [
        held(1, "fc", tokens=30, fails_at=7, broken=broken),
        held(2, "c", tokens=30),
        ask(3, tokens=30),
    ]
    answers, _ = await serve(FakeEngine(mode=Mode.INLINE), submissions, depth=depth)
    assert answers[0].end.reason == "error" and len(answers[0].tokens) == 7
    assert isinstance(answers[0].end.error, kind) and says in str(answers[0].end.error)
    all_right(answers[1:], submissions[1:])


async def test_a_form_that_is_complete_ends_the_answer() -> None:
    """Also where an end token would not, which shows nothing of its own."""
    answers, _ = await serve(
        FakeEngine(mode=Mode.INLINE), [held(1, "c", tokens=30, ends_at=9, ignore_eos=True)]
    )
    (answer,) = answers
    assert answer.end.reason == "stop" and len(answer.tokens) == 9
    assert len(answer.pieces) == 9 and answer.pieces[-1] == ""


async def test_states_show_where_it_waits(autojump_clock: MockClock) -> None:
    engine = FakeEngine(mode=Mode.MANUAL, times=Times(step=0.01))
    async with serving(engine, depth=2) as service:
        answer = await read(service.submit(held(2, "ffrcf", tokens=10)))
        assert answer.end.reason == "length"
        await settled(service)
        seen = {
            state
            for record in service.events
            if record.machine == "request"
            for state in record.configuration
        }
        assert {"decoding_free", "decoding_masked", "decoding_masking"} <= seen
        assert "decoding" in path_of(service, "r2")
