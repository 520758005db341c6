"""Longer walks than can be explored: up to five requests, any mixture of misfortunes, and the real block pool beside
the model's counts. What is checked at each step is what the exploration checks; at the end every client leaves, and
everything must come back.
"""

from __future__ import annotations

import attrs
import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from luce.charts.explorer import Violation
from luce.composition.memory import Memory
from luce.composition.options import Options, Shape
from luce.composition.system import System
from luce.composition.world import World
from luce.scheduling.block_pool import BlockPool, blocks_for
from luce.scheduling.holds import Hold

SHAPES = [
    Shape(prompt_rows=1, max_tokens=4),
    Shape(prompt_rows=2, max_tokens=5, masks="frccf"),
    Shape(prompt_rows=1, max_tokens=4, masks="rcc"),
    Shape(prompt_rows=4, max_tokens=3, capture_points=(2,)),
    Shape(prompt_rows=3, spans=((1, 1),)),
    Shape(prompt_rows=4, spans=((0, 1), (2, 2)), pictures=(b"P", b"Q")),
    Shape(prompt_rows=3, spans=((0, 2),), pictures=(b"P",), max_tokens=4),
    Shape(prompt_rows=2, spans=((1, 1),), recomputable=False),
    Shape(prompt_rows=2, max_tokens=6, recomputable=False),
    Shape(prompt_rows=4, spans=((0, 1), (2, 1)), whole=True, recomputable=False),
    Shape(prompt_rows=3, spans=((0, 1),), pictures=(b"Q",), max_tokens=4, whole=True),
]


@st.composite
def systems(draw: st.DrawFn) -> Options:
    drawn = draw(st.lists(st.sampled_from(SHAPES), min_size=2, max_size=5))
    choices = draw(st.integers(1, len(drawn)))  # of the first one's prompt
    shapes = (drawn[0], *[attrs.evolve(drawn[0], leader=0)] * (choices - 1), *drawn[choices:])
    size = draw(st.integers(1, 3))
    alone = max(blocks_for(shape.prompt_rows + shape.max_tokens, size) for shape in shapes)
    some = st.integers(0, 2)
    return Options(
        shapes,
        depth=draw(st.integers(1, 2)),
        slots=draw(st.integers(1, 3)),
        blocks=alone + draw(st.integers(0, 4)),
        block_size=size,
        prefill_budget=draw(st.sampled_from([1, 2, None])),
        cancels=draw(st.integers(0, len(shapes))),
        stalls=draw(some),
        client_timeouts=draw(st.booleans()),
        queue_timeouts=draw(st.booleans()),
        deadlines=draw(some),
        step_failures=draw(some),
        image_failures=draw(some),
        mask_failures=draw(some),
        saves=draw(st.sampled_from([0, 5, 20])),
        kept_images=draw(some),
        hits=draw(some),
        keeps_answers=draw(st.booleans()),
        copy_failures=draw(some),
        drains=draw(some),
        late_submits=draw(st.booleans()),
        layers=2,
    )


class Pool:
    """The real block pool, led by the slots of the model."""

    def __init__(self, options: Options) -> None:
        self.pool = BlockPool(options.blocks, options.block_size)
        self.holds: dict[tuple[int, int], Hold] = {}
        """By slot and request."""
        self.saving: set[tuple[int, int]] = set()

    def follow(self, world: World) -> None:
        loop = world.loop
        running = {(slot, number) for slot, number in loop.running.items()}
        for owner in sorted(self.holds.keys() - running):
            hold = self.holds.pop(owner)
            if owner in self.saving:
                self.pool.saved(hold)
            else:
                self.pool.release(hold)
        self.saving &= running
        for owner in sorted(running - self.holds.keys()):
            hold = self.holds[owner] = self.pool.allocate(0)
            self.pool.reserve(hold, loop.reserved[owner[0]])
        for owner, hold in self.holds.items():
            slot = owner[0]
            if slot in loop.saving and owner not in self.saving:
                self.pool.begin_save(hold)
                self.saving.add(owner)
            if loop.held[slot] > len(hold):
                self.pool.extend(hold, loop.held[slot] - len(hold))
        self.pool.check_integrity(self.holds.values())
        assert self.pool.available == Memory(world).pool.available


class Walk(RuleBasedStateMachine):
    planted: frozenset[str] = frozenset()

    @initialize(options=systems())
    def begin(self, options: Options) -> None:
        self.options = attrs.evolve(options, planted=self.planted)
        self.system = System(self.options)
        self.state = self.system.start()
        self.pool = Pool(self.options)

    @rule(data=st.data())
    def anything(self, data: st.DataObject) -> None:
        self._one_of(data, [*self.system.actions(self.state)])

    @rule(data=st.data())
    def arrive(self, data: st.DataObject) -> None:
        self._one_of(data, [a for a in self.system.actions(self.state) if a.endswith("submits")])

    @rule(data=st.data(), steps=st.integers(1, 40))
    def go_on(self, data: st.DataObject, steps: int) -> None:
        """Actors and device, some way, with nothing going wrong and no early end."""
        for _ in range(steps):
            inner = filter(System.goes_on, self.system.actions(self.state))
            self._one_of(data, [a for a in inner if not ("fail" in a or "last token" in a or "full" in a)])

    def _one_of(self, data: st.DataObject, actions: list[str]) -> None:
        if actions:
            self._do(data.draw(st.sampled_from(actions)) if len(actions) > 1 else actions[0])

    def _do(self, action: str) -> None:
        self.state = self.system.apply(self.state, action)
        self.pool.follow(World.thaw(self.options, self.state))

    @invariant()
    def mailboxes_are_short(self) -> None:
        """I13: two, what ends a request early, and what its client and its timers add."""
        if hasattr(self, "system"):
            assert self.system.longest_mailbox <= 2 + 2 + 4 + 1

    def teardown(self) -> None:
        if not hasattr(self, "system"):
            return
        rest, _ = self.system.settle(self.system.cancel_all(self.state))
        assert self.system.done(rest), "something is left"


TestWalk = Walk.TestCase
TestWalk.settings = settings(max_examples=120, stateful_step_count=30, deadline=None)


@pytest.mark.parametrize(
    "defect",
    [
        "block-leak",
        "deaf-encoder",
        "keeps-timers",
    ],
)
def test_planted_defects_are_found(defect: str) -> None:
    machine = type("Defective", (Walk,), {"planted": frozenset([defect])})
    with pytest.raises((AssertionError, Violation, ExceptionGroup)):
        run_state_machine_as_test(
            machine,
            settings=settings(
                TestWalk.settings,
                max_examples=500,
                phases=[Phase.generate],
                database=None,
                derandomize=True,
            ),
        )
