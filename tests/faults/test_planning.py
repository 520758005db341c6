"""The planner by itself, in a simulated world (B68)."""

from __future__ import annotations

import random

import attrs
from hypothesis import given, settings
from hypothesis import strategies as st

from luce.scheduling.block_pool import blocks_for
from luce.scheduling.plan import plan
from luce.scheduling.state import Lane, Limits, LoopState, Waiting


@attrs.define
class Simulated:
    """A request in the planner's world: its pictures land one by one, at times of their own."""

    key: int
    prompt: int
    answer: int
    images: list[int]
    """Rows where pictures stand that are not encoded yet."""
    next_row: int = 0
    slot: int | None = None

    @property
    def ready(self) -> int:
        return self.images[0] if self.images else self.prompt

    @property
    def last_row(self) -> int:
        return self.prompt + self.answer - 1

    @property
    def done(self) -> bool:
        return self.next_row >= self.last_row

    @property
    def runnable(self) -> bool:
        return self.next_row >= self.prompt or self.ready > self.next_row


@st.composite
def worlds(draw: st.DrawFn) -> list[Simulated]:
    made = []
    for key in range(draw(st.integers(1, 10))):
        prompt = draw(st.integers(1, 60))
        images = draw(st.lists(st.integers(0, prompt - 1), max_size=3, unique=True))
        made.append(Simulated(key, prompt, draw(st.integers(1, 12)), sorted(images)))
    return made


@settings(max_examples=120, deadline=None)
@given(
    worlds(),
    st.integers(1, 4),
    st.sampled_from([1, 7, 64, None]),
    st.sampled_from([8, 16, 40]),
    st.randoms(use_true_random=False),
)
def test_b68_every_plan_is_bounded_and_goes_on(
    world: list[Simulated], slots: int, budget: int | None, blocks: int, rng: random.Random
) -> None:
    """Random mixes of text and pictures in all phases: never an empty plan while something can run, and an end."""
    limits = Limits(slots, 16, budget)
    waiting = [r for r in world if blocks_for(r.prompt + r.answer, 16) <= blocks]
    total = len(waiting)
    running: dict[int, Simulated] = {}
    work = sum(r.prompt + r.answer + 2 * len(r.images) + 3 for r in waiting)
    ended = steps = 0
    while waiting or running:
        steps += 1
        assert steps <= 2 * work + 10, "no progress"
        free = tuple(slot for slot in range(slots) if slot not in running)
        held = sum(blocks_for(r.prompt + r.answer, 16) for r in running.values())
        state = LoopState(
            limits=limits,
            lanes=tuple(
                Lane(s, r.key, r.next_row, r.prompt, r.ready, r.last_row, covered_rows=r.prompt + r.answer)
                for s, r in running.items()
            ),
            waiting=tuple(Waiting(r.key, blocks_for(r.prompt + r.answer, 16)) for r in waiting[: len(free)]),
            free_slots=free,
            available_blocks=blocks - held,
        )
        decision = plan(state)
        assert len(decision.grants) <= len(free) and len(decision.segments) <= len(running)
        could_grant = (
            bool(free and waiting) and blocks_for(waiting[0].prompt + waiting[0].answer, 16) <= blocks - held
        )
        could_run = any(r.runnable and not r.done for r in running.values())
        assert decision.grants or not could_grant, "a free slot, room and a request that waits"
        assert decision.grants or decision.segments or not could_run, "an empty plan beside runnable work"
        for grant in decision.grants:
            request = waiting.pop(0)
            assert request.key == grant.key, "overtaken"
            request.slot = grant.slot
            running[grant.slot] = request
        for segment in decision.segments:
            running[segment.slot].next_row = segment.start + segment.count
        for slot, request in list(running.items()):
            if request.images and (rng.random() < 0.5 or not decision.segments):
                request.images.pop(0)
            if request.done and not request.images:
                del running[slot]
                ended += 1
    assert ended == total
