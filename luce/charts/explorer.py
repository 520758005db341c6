"""Explores charts exhaustively: one chart alone over all guard values, or a composed model breadth first.

A model is anything with hashable states: machines, their mailboxes, and as much of the actors' data as their guards
and policies read. It says which actions are possible in a state and what each does; an action that breaks a rule
raises. Breadth first means that the path to the first fault is a shortest one, so it reads as a story.

Safety (nothing bad happens) is checked while states are found. Progress (something good stays possible) is checked
afterwards on the finished graph: `Exploration.stuck` finds deadlocks, `Exploration.cut_off` states from which no
good end can be reached any more, live-locks included.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from typing import Generic, Protocol, TypeVar

import attrs

from luce.charts.interpreter import Configuration, entries, outcomes
from luce.charts.model import Chart
from luce.errors import ChartError, IllegalEvent
from luce.paused_collector import paused_collector

__all__ = ["Exploration", "Fault", "Model", "Violation", "explore", "reachable"]

S = TypeVar("S", bound=Hashable)


class Violation(Exception):  # noqa: N818 - what a model finds, not an error of the program
    """Raised by a model whose rule is broken."""


class Model(Protocol[S]):
    """A closed system to explore. Methods must be pure."""

    def start(self) -> S: ...

    def actions(self, state: S) -> Iterable[str]:
        """Labels of all that may happen next."""

    def apply(self, state: S, action: str) -> S:
        """The state after one action. Raises Violation or IllegalEvent when a rule is broken."""


@attrs.frozen
class Fault:
    """A broken rule, or whatever else is looked for, and a shortest way to it."""

    message: str
    path: tuple[str, ...]

    def __str__(self) -> str:
        if not self.path:
            return self.message
        steps = "\n".join(f"  {number}. {label}" for number, label in enumerate(self.path, 1))
        return f"{self.message}, after\n{steps}"


@attrs.define(eq=False)
class Exploration(Generic[S]):
    """All states found, how each was reached first, and the graph between them."""

    parents: dict[S, tuple[S, str] | None]
    successors: dict[S, list[S]]
    """Complete for every state, unless the exploration stopped at a fault or at its limit."""
    faults: list[Fault]
    complete: bool
    """Every reachable state was visited."""

    @property
    def states(self) -> int:
        return len(self.parents)

    @property
    def edges(self) -> int:
        return sum(map(len, self.successors.values()))

    def path(self, state: S) -> tuple[str, ...]:
        """Labels of a shortest path from the start to `state`."""
        labels: list[str] = []
        step = self.parents[state]
        while step is not None:
            labels.append(step[1])
            step = self.parents[step[0]]
        return tuple(reversed(labels))

    def stuck(self, is_end: Callable[[S], bool]) -> list[S]:
        """Deadlocks: states without a successor that are no end."""
        return [s for s, following in self.successors.items() if not following and not is_end(s)]

    def cut_off(self, is_end: Callable[[S], bool]) -> list[S]:
        """States from which no end can be reached. Empty means: progress is always possible."""
        with paused_collector():
            return self._cut_off(is_end)

    def _cut_off(self, is_end: Callable[[S], bool]) -> list[S]:
        before: dict[S, list[S]] = {}
        for state, following in self.successors.items():
            for other in following:
                before.setdefault(other, []).append(state)
        fine = {state for state in self.parents if is_end(state)}
        work = list(fine)
        while work:
            for state in before.get(work.pop(), ()):
                if state not in fine:
                    fine.add(state)
                    work.append(state)
        return [state for state in self.parents if state not in fine]


def explore(model: Model[S], *, limit: int = 1_000_000, faults: int = 1) -> Exploration[S]:
    """Visits every state, breadth first, until `faults` rules were broken or `limit` states were found."""
    with (
        paused_collector()
    ):  # states are tuples that all stay alive: looking for cycles takes a third of the time
        return _explore(model, limit, faults)


def _explore(model: Model[S], limit: int, faults: int) -> Exploration[S]:
    start = model.start()
    found: Exploration[S] = Exploration({start: None}, {}, [], complete=False)
    parents = found.parents
    work = deque([start])
    while work:
        state = work.popleft()
        following = found.successors[state] = []
        for action in model.actions(state):
            try:
                after = model.apply(state, action)
            except (Violation, IllegalEvent) as broken:
                found.faults.append(Fault(str(broken), (*found.path(state), action)))
                if len(found.faults) >= faults:
                    return found
                continue
            following.append(after)
            if after not in parents:
                parents[after] = (state, action)
                work.append(after)
        if len(parents) > limit:
            return found
    found.complete = True
    return found


def reachable(chart: Chart, *, limit: int | None = None) -> tuple[Configuration, ...]:
    """Every configuration that some sequence of events and guard answers leads to, in the order of discovery.

    Args:
        limit: how many ways from one configuration to another are tried at most; None for charts of our own.

    Raises:
        ChartError: there are more.
    """
    seen = {entered.then: None for _, entered in entries(chart) if entered.then is not None}
    work = list(seen)
    tried = 0
    events = sorted(chart.events)
    for here in work:
        for event in events:
            for _, outcome in outcomes(here, event):
                tried += 1
                if limit is not None and tried > limit:
                    raise ChartError(
                        f"{chart.name}: more than {limit} ways from one configuration to another, "
                        "too many to try all"
                    )
                if outcome.then is not None and outcome.then not in seen:
                    seen[outcome.then] = None
                    work.append(outcome.then)
    return tuple(seen)
