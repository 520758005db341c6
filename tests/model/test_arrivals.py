"""How long an arrival waits when a slot and blocks are there (`loop.scxml` states the bound): nobody has the engine to
itself, so it is let in by the next plan.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs
import pytest

from luce.charts.explorer import Violation, explore
from luce.composition.options import Options, Shape
from luce.composition.system import State, System
from luce.composition.world import Request, World

LONG = Shape(prompt_rows=2, max_tokens=4)
IMAGE = Shape(prompt_rows=2, spans=((0, 1),))
ROOMY = Options((LONG, IMAGE), blocks=12)

Waits = tuple[int | None, ...]
"""By request: steps and windows that it may still wait for, while it has no slot."""


class Arrivals:
    """A system, and how much longer each arrival may wait: for the oldest step that was in flight when it came, or,
    where there was none, for one coalescing window."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.system = System(options)
        self.waited: set[str] = set()
        """What some arrival did wait for."""

    def start(self) -> tuple[State, Waits]:
        return self.system.start(), (None,) * len(self.options.shapes)

    def actions(self, state: tuple[State, Waits]) -> Iterator[str]:
        return self.system.actions(state[0])

    def apply(self, state: tuple[State, Waits], action: str) -> tuple[State, Waits]:
        after = self.system.apply(state[0], action)
        world = World.thaw(self.options, after)
        passed = action.startswith(("device: step", "timer of the loop"))
        waits: list[int | None] = []
        for request, left in zip(world.requests, state[1], strict=True):
            if action == f"client {request.number} submits":
                left = 1
            elif left is not None and passed:
                if not left:
                    raise Violation(f"request {request.number} waits on after {action!r}")
                self.waited.add("step" if action.startswith("device") else "window")
                left -= 1
            waits.append(left if self._queues(request) else None)
        return after, tuple(waits)

    def _queues(self, request: Request) -> bool:
        granted = any(message[0] == "slot.granted" for message in request.mailbox)
        return request.active("queued") and not granted


@pytest.mark.parametrize("depth", [1, 2])
def test_an_arrival_waits_for_one_step_or_one_window_at_most(depth: int) -> None:
    model = Arrivals(attrs.evolve(ROOMY, depth=depth, cancels=1))
    found = explore(model)
    assert found.complete and not found.faults, found.faults[0]
    assert model.waited == {"step", "window"}
    print(f"\ndepth {depth}: {found.states} states, {found.edges} edges")


def test_a_request_that_has_the_engine_to_itself_is_found() -> None:
    """A single path for who is alone would make an arrival wait for a whole answer."""
    found = explore(Arrivals(attrs.evolve(ROOMY, planted=frozenset(["single"]))))
    assert "request 1 waits on after 'device: step done'" in found.faults[0].message
