"""One chart as a model to explore: every event in every configuration, whatever its guards answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from luce.charts.explorer import Fault, explore
from luce.charts.interpreter import Configuration, Outcome, entries, outcomes
from luce.charts.model import Chart

__all__ = ["ChartAlone", "answered", "way_to"]

Here = Configuration | None
"""None: it has not been entered."""


def answered(answers: Mapping[str, bool]) -> str:
    """What guards say, in words."""
    return ", ".join(f"{'' if yes else 'not '}{name}" for name, yes in answers.items())


class ChartAlone:
    """`luce.charts.explorer.Model` of one chart. What it does not allow does not happen."""

    def __init__(self, chart: Chart) -> None:
        self._chart = chart
        self._events = sorted(chart.events)

    def start(self) -> Here:
        return None

    def actions(self, state: Here) -> Iterator[str]:
        return (label for label, outcome in self._ways(state) if outcome.then is not None)

    def apply(self, state: Here, action: str) -> Here:
        return next(outcome.then for label, outcome in self._ways(state) if label == action)

    def _ways(self, state: Here) -> Iterator[tuple[str, Outcome]]:
        if state is None:
            for answers, outcome in entries(self._chart):
                yield _labelled("the start", answers), outcome
            return
        for event in self._events:
            for answers, outcome in outcomes(state, event):
                yield _labelled(event, answers), outcome


def _labelled(what: str, answers: Mapping[str, bool]) -> str:
    return f"{what} if {answered(answers)}" if answers else what


def way_to(chart: Chart, state: str, *, limit: int) -> Fault | None:
    """A shortest way to a state, told as one to a fault; None where no way is found in ``limit`` configurations."""
    found = explore(ChartAlone(chart), limit=limit)
    for here in found.numbers:
        if here is not None and state in here.active:
            return Fault(f"{chart.name} is in {state}", found.path(here))
    return None
