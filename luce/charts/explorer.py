"""Explores charts exhaustively: one chart alone over all guard values, or a composed model breadth first.

A model is anything with hashable states: machines, their mailboxes, and as much of the actors' data as their guards
and policies read. It says which actions are possible in a state and what each does; an action that breaks a rule
raises. Breadth first means that the path to the first fault is a shortest one, so it reads as a story.

Safety (nothing bad happens) is checked while states are found. Progress (something good stays possible) is checked
afterwards on the finished graph: `Exploration.stuck` finds deadlocks, `Exploration.cut_off` states from which no
good end can be reached any more, live-locks included.
"""

from __future__ import annotations

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
    """All states found, how each was reached first, and the graph between them.

    A state is hashed once, when it is found: the hash of a large tuple takes about as long as a step of the model.
    """

    numbers: dict[S, int]
    """Every state, in the order in which they were found, by its place in it."""
    origins: list[tuple[int, str] | None]
    """By number: from which state it was reached first, and how; nothing for the start."""
    successors: list[list[int]]
    """By number. There for every state, and complete, unless the exploration stopped at a fault or at its limit."""
    faults: list[Fault]
    complete: bool
    """Every reachable state was visited."""

    @property
    def states(self) -> int:
        return len(self.numbers)

    @property
    def edges(self) -> int:
        return sum(map(len, self.successors))

    def path(self, state: S) -> tuple[str, ...]:
        """Labels of a shortest path from the start to `state`."""
        return self._path(self.numbers[state])

    def _path(self, number: int) -> tuple[str, ...]:
        labels: list[str] = []
        step = self.origins[number]
        while step is not None:
            labels.append(step[1])
            step = self.origins[step[0]]
        return tuple(reversed(labels))

    def stuck(self, is_end: Callable[[S], bool]) -> list[S]:
        """Deadlocks: states without a successor that are no end."""
        visited = zip(self.numbers, self.successors, strict=False)
        return [state for state, following in visited if not following and not is_end(state)]

    def cut_off(self, is_end: Callable[[S], bool]) -> list[S]:
        """States from which no end can be reached. Empty means: progress is always possible."""
        with paused_collector():
            return self._cut_off(is_end)

    def _cut_off(self, is_end: Callable[[S], bool]) -> list[S]:
        before: list[list[int]] = [[] for _ in self.numbers]
        for number, following in enumerate(self.successors):
            for other in following:
                before[other].append(number)
        fine = bytearray(is_end(state) for state in self.numbers)
        work = [number for number, is_fine in enumerate(fine) if is_fine]
        while work:
            for number in before[work.pop()]:
                if not fine[number]:
                    fine[number] = True
                    work.append(number)
        return [state for state, is_fine in zip(self.numbers, fine, strict=True) if not is_fine]


def explore(model: Model[S], *, limit: int = 1_000_000, faults: int = 1) -> Exploration[S]:
    """Visits every state, breadth first, until `faults` rules were broken or `limit` states were found."""
    with (
        paused_collector()
    ):  # states are tuples that all stay alive: looking for cycles takes a third of the time
        return _explore(model, limit, faults)


def _explore(model: Model[S], limit: int, faults: int) -> Exploration[S]:
    start = model.start()
    found: Exploration[S] = Exploration({start: 0}, [None], [], [], complete=False)
    numbers, states = found.numbers, [start]
    for here, state in enumerate(states):  # grows meanwhile
        following: list[int] = []
        found.successors.append(following)
        for action in model.actions(state):
            try:
                after = model.apply(state, action)
            except (Violation, IllegalEvent) as broken:
                found.faults.append(Fault(str(broken), (*found._path(here), action)))
                if len(found.faults) >= faults:
                    return found
                continue
            number = numbers.setdefault(after, len(states))
            following.append(number)
            if number == len(states):
                states.append(after)
                found.origins.append((here, action))
        if len(states) > limit:
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
