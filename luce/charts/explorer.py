"""Explores charts exhaustively: one chart alone over all guard values, or a composed model breadth first."""

from __future__ import annotations

from luce.charts.interpreter import Configuration, initial, outcomes
from luce.charts.model import Chart

__all__ = ["reachable"]


def reachable(chart: Chart) -> tuple[Configuration, ...]:
    """Every configuration that some sequence of events and guard answers leads to, in the order of discovery."""
    start = initial(chart).then
    assert start is not None
    seen = {start: None}
    work = [start]
    events = sorted(chart.events)
    for here in work:
        for event in events:
            for _, outcome in outcomes(here, event):
                if outcome.then is not None and outcome.then not in seen:
                    seen[outcome.then] = None
                    work.append(outcome.then)
    return tuple(seen)
