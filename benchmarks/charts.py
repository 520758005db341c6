"""What one event costs: `machine.feed` warm, with and without guards and records; a machine; a chart."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from benchmarks.measure import Result, quiet_median, seconds_of
from luce.charts.guards import guard
from luce.charts.interpreter import Machine, Step
from luce.charts.loader import chart_path, load_chart, parse_chart

__all__ = ["main"]

GOAL_NS = 500.0


def _guards() -> object:
    """Every guard of request.scxml; all false but `prompt_complete`."""
    answers = {name: name == "prompt_complete" for name in load_chart("request").guards}
    methods = {name: guard(lambda self, answer=answer: answer) for name, answer in answers.items()}
    return type("Guards", (), methods)()


def _decoding(observer: Callable[[Step], None] | None = None) -> Machine:
    """A request in the state in which it gets nearly all of its events."""
    machine = Machine(load_chart("request"), _guards(), observer=observer)
    machine.start()
    for event in ("slot.granted", "chunk.done", "token"):
        machine.feed(event)
    assert machine.active("decoding")
    return machine


def _load() -> None:
    parse_chart(chart_path("request").read_bytes(), "request")


def main() -> list[Result]:
    """The table of figures, in nanoseconds."""
    decoding = _decoding()
    ending = _decoding()
    ending.feed("cancel")
    kept: list[Step] = []

    def forget(step: Step) -> None:
        kept[:] = (step,)

    recorded = _decoding(forget)
    chart, guards = load_chart("request"), _guards()
    cases: list[tuple[str, Callable[[], object], float | None]] = [
        ("token, no guard (a request that is ending)", partial(ending.feed, "token"), GOAL_NS),
        ("token, one guard (a request that decodes)", partial(decoding.feed, "token"), GOAL_NS),
        ("token, one guard, with its record", partial(recorded.feed, "token"), None),
        ("a machine, made and started", lambda: Machine(chart, guards).start(), None),
        ("request.scxml, read and checked", _load, None),
    ]
    return [
        quiet_median(name, "ns", lambda action=action: 1e9 * seconds_of(action), goal=goal)  # type: ignore[misc]
        for name, action, goal in cases
    ]
