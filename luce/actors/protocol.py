"""Do the charts and the actors that run them speak of the same events? Checked once, before anything is served.

A chart that names a guard which its actor does not have, or sends an event that the other chart does not know, would
otherwise show at the first request that comes by.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from luce.charts.guards import bind_guards
from luce.charts.model import Chart, Send
from luce.errors import ChartError

__all__ = ["FED", "check_fit", "check_protocol"]

FED: Mapping[str, frozenset[str]] = {
    "request": frozenset({
        "slot.granted", "chunk.done", "token", "step.failed", "image.ready", "encode.failed", "queue.expired",
        "cancel", "retired", "dropped", "client.full", "client.drained", "client.timeout",
        "deadline.expired", "lead.over",
        "park.save", "park.drop", "resume", "restore.failed", "adoption.failed", "mask.ready", "mask.failed",
    }),
    "loop": frozenset({
        "admit", "retire", "rows.ready", "plan.rows", "plan.empty", "turn.done", "step.done", "drain", "abort",
        "window.elapsed",
    }),
    "encoder": frozenset({"encode", "drop", "image.done", "image.failed", "stop"}),
    "server": frozenset({"weights.loaded", "warm", "drain", "drained", "fault"}),
}  # fmt: skip
"""Events that the actors' code feeds to each chart."""

SPEAKS_FOR: Mapping[str, str] = {
    "loop": "loop", "encoder": "encoder", "request": "request", "requests": "request", "waiting": "request",
    "followers": "request",
}  # fmt: skip
"""Whose chart a message to a target reaches."""

SERVICES = frozenset({"timer", "masks"})
"""Targets that run no chart: the timers, and the workers that compute masks."""


def check_protocol(charts: Mapping[str, Chart], guards: Mapping[str, object]) -> None:
    """Compare the charts, by the names in :data:`FED`, with one another and with their actors.

    Args:
        guards: an instance of each actor's guard class; it is asked nothing.

    Raises:
        ChartError: names the chart and the guard, event or target that does not fit.
    """
    for name in charts:
        check_fit(name, charts, guards[name])


def check_fit(name: str, charts: Mapping[str, Chart], guards: object) -> None:
    """Compare one of the charts with its actor, and what it sends with the others.

    Args:
        charts: all charts named in :data:`FED`.
        guards: an instance of its actor's guard class.

    Raises:
        ChartError: as :func:`check_protocol`.
    """
    chart = charts[name]
    bind_guards(chart, guards)
    if missing := sorted(FED[name] - chart.events):
        raise ChartError(f"{name}.scxml: no transition for {', '.join(missing)}, which its actor feeds")
    for send in _sends(chart):
        if send.target in SERVICES:
            continue
        receiver = SPEAKS_FOR.get(send.target)
        if receiver is None:
            raise ChartError(f"{name}.scxml: sends {send.event!r} to #_{send.target}; there is no such actor")
        if send.event not in charts[receiver].events:
            raise ChartError(
                f"{name}.scxml: sends {send.event!r} to #_{send.target}, but {receiver}.scxml knows no such event"
            )


def _sends(chart: Chart) -> Iterator[Send]:
    for node in chart.nodes:
        actions = [*node.onentry, *node.onexit]
        for transition in node.transitions:
            actions += transition.actions
        yield from (action for action in actions if isinstance(action, Send))
