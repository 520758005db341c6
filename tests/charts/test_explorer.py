"""The model checker itself, on toys whose answers are known."""

from __future__ import annotations

import pytest

from luce.charts.explorer import Violation, explore, reachable
from luce.charts.loader import load_chart


class Grid:
    """Walks on a grid from (0, 0); (n, n) is the end; `wall` may not be entered; `trap` has no way out."""

    def __init__(
        self, size: int, wall: tuple[int, int] | None = None, trap: tuple[int, int] | None = None
    ) -> None:
        self.size, self.wall, self.trap = size, wall, trap

    def start(self) -> tuple[int, int]:
        return 0, 0

    def actions(self, state: tuple[int, int]) -> list[str]:
        if state == self.trap:
            return []
        return ["right"] * (state[0] < self.size) + ["up"] * (state[1] < self.size)

    def apply(self, state: tuple[int, int], action: str) -> tuple[int, int]:
        after = (state[0] + 1, state[1]) if action == "right" else (state[0], state[1] + 1)
        if after == self.wall:
            raise Violation("hit the wall")
        return after

    def end(self, state: tuple[int, int]) -> bool:
        return state == (self.size, self.size)


class Circle:
    """A live-lock: every state has a successor, none leads out once (2) is entered."""

    def start(self) -> int:
        return 0

    def actions(self, state: int) -> list[str]:
        return {0: ["in", "end"], 1: [], 2: ["round"], 3: ["round"]}[state]

    def apply(self, state: int, action: str) -> int:
        return {"in": 2, "end": 1, "round": 5 - state}[action]


def test_all_states_and_edges_are_found() -> None:
    found = explore(Grid(4))
    assert found.complete
    assert (found.states, found.edges) == (25, 40)
    assert len(found.path((4, 4))) == 8


def test_the_path_to_a_fault_is_a_shortest_one() -> None:
    found = explore(Grid(6, wall=(2, 1)))
    assert not found.complete
    (fault,) = found.faults
    assert fault.message == "hit the wall"
    assert sorted(fault.path) == ["right", "right", "up"]
    assert str(fault).startswith("hit the wall, after\n  1. right")


def test_more_faults_on_request() -> None:
    found = explore(Grid(6, wall=(2, 1)), faults=5)
    assert len(found.faults) == 2
    assert found.complete, "the wall was walked around"


def test_deadlocks_and_live_locks() -> None:
    grid = Grid(3, trap=(1, 2))
    found = explore(grid)
    assert found.stuck(grid.end) == [(1, 2)]
    assert found.cut_off(grid.end) == [(1, 2)]
    circle = explore(Circle())
    assert circle.stuck(lambda state: state == 1) == []
    assert circle.cut_off(lambda state: state == 1) == [2, 3]


def test_the_limit_is_said() -> None:
    found = explore(Grid(50), limit=100)
    assert not found.complete
    assert found.states <= 102


@pytest.mark.parametrize(("name", "count"), [("request", 50), ("loop", 19), ("encoder", 4), ("server", 7)])
def test_reachable_configurations(name: str, count: int) -> None:
    """A changed number is a changed chart: look at the drawing, then change it here."""
    found = reachable(load_chart(name))
    assert len(found) == len(set(found)) == count
