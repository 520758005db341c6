"""The simulator notices: each defect planted here ends a run, and says why."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import pytest

from luce.actors.step_loop import StepLoop
from luce.actors.timers import Timers
from luce.actors.token_buffer import TokenBuffer
from luce.scheduling.plan import plan
from luce.scheduling.state import Decision, LoopState
from tests.sim import watch
from tests.sim.crowd import FAULTY, serve_crowd
from tests.sim.simulator import check_results

Patch = pytest.MonkeyPatch


def the_newest_is_served_first(patch: Patch) -> None:
    patch.setattr(watch, "plan", lambda state: plan(attrs.evolve(state, waiting=state.waiting[::-1])))


def parked_requests_are_overtaken(patch: Patch) -> None:
    def unfair(state: LoopState) -> Decision:
        return plan(attrs.evolve(state, parked=()) if state.waiting else state)

    patch.setattr(watch, "plan", unfair)


def timers_outlive_their_request(patch: Patch) -> None:
    patch.setattr(Timers, "clear", lambda *_: None)


def slots_are_closed_under_way(patch: Patch) -> None:
    release = StepLoop._release_if_still

    def early(self: StepLoop, slot: int) -> None:
        flights, self.flights = self.flights, deque()
        release(self, slot)
        self.flights = flights

    patch.setattr(StepLoop, "_release_if_still", early)


def some_are_given_a_wrong_token(patch: Patch) -> None:
    put = TokenBuffer.put

    def wrong(self: TokenBuffer, delta: Any) -> bool:
        if self.tokens == 20:
            delta = delta._replace(tokens=(attrs.evolve(delta.tokens[0], token=delta.tokens[0].token ^ 1),))
        return put(self, delta)

    patch.setattr(TokenBuffer, "put", wrong)


DEFECTS: dict[Callable[[Patch], None], str] = {
    the_newest_is_served_first: "the grants are not the head of the queue",
    parked_requests_are_overtaken: "overtakes a parked request",
    timers_outlive_their_request: "holds {'timer'",
    slots_are_closed_under_way: "is closed with",
    some_are_given_a_wrong_token: "other tokens than alone",
}


def leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            yield from leaves(one)
    else:
        yield error


@pytest.mark.unrecorded  # luce does it otherwise
@pytest.mark.parametrize("plant", DEFECTS, ids=lambda plant: plant.__name__.replace("_", " "))
def test_a_planted_defect_is_noticed(plant: Callable[[Patch], None], monkeypatch: Patch) -> None:
    plant(monkeypatch)
    with pytest.raises((AssertionError, BaseExceptionGroup)) as raised:
        check_results(serve_crowd(3, 200, depth=2).results, FAULTY)
    said = " | ".join(str(one) for one in leaves(raised.value))
    print(said[:500])
    assert DEFECTS[plant] in said
