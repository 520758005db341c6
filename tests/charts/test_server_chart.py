"""server.scxml alone: every configuration, event and timer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from luce.charts.explorer import explore, reachable
from luce.charts.interpreter import Configuration, advance, initial, outcomes
from luce.charts.loader import chart_path, load_chart, parse_chart
from luce.charts.model import Chart, Send
from luce.errors import ChartError

SERVER = load_chart("server")
FOUND = {here.states[-1]: here for here in reachable(SERVER)}
TIMERS = {"draining.timeout", "abort.timeout"}

LEADS = {
    ("loading", "weights.loaded"): "warming",
    ("loading", "load.failed"): "failed",
    ("loading", "fault"): "failed",
    ("loading", "drain"): "stopped",
    ("warming", "warm"): "ready",
    ("warming", "load.failed"): "failed",
    ("warming", "fault"): "failed",
    ("warming", "drain"): "stopped",
    ("ready", "drain"): "finishing",
    ("ready", "fault"): "failed",
    ("finishing", "drained"): "stopped",
    ("finishing", "drain"): "aborting",
    ("finishing", "draining.timeout"): "aborting",
    ("finishing", "fault"): "failed",
    ("aborting", "drained"): "stopped",
    ("aborting", "drain"): "aborting",
    ("aborting", "draining.timeout"): "aborting",
    ("aborting", "abort.timeout"): "stopped",
    ("aborting", "fault"): "failed",
}
"""Everything that is legal, and where it leads. There are no guards."""

State = tuple[Configuration, frozenset[str]]


class Server:
    """The chart and its timers. `deaf`: the loop, whose clients may never read, does not say `drained`."""

    def __init__(self, chart: Chart, deaf: bool) -> None:
        self.chart = chart
        self.outside = ["weights.loaded", "warm", "drain"] + (
            [] if deaf else ["drained", "fault", "load.failed"]
        )

    def start(self) -> State:
        outcome = initial(self.chart)
        assert outcome.then is not None
        return outcome.then, self._timers(frozenset(), outcome.sends)

    def actions(self, state: State) -> Iterator[str]:
        here, timers = state
        yield from (event for event in self.outside if advance(here, event, bool).then is not None)
        yield from sorted(timers)

    def apply(self, state: State, action: str) -> State:
        here, timers = state
        outcome = advance(here, action, bool)
        assert outcome.then is not None
        return outcome.then, self._timers(timers - {action}, outcome.sends)

    def _timers(self, timers: frozenset[str], sends: tuple[Send, ...]) -> frozenset[str]:
        for send in sends:
            if send.target == "timer":
                timers = timers - {send.event} if send.delay is None else timers | {send.event}
        return timers

    def ended(self, state: State) -> bool:
        return state[0].finished and not state[1]


def test_nothing_else_is_legal() -> None:
    legal = {}
    for name, here in FOUND.items():
        for event in SERVER.events:
            for known, outcome in outcomes(here, event):
                assert not known
                if outcome.then is not None:
                    legal[name, event] = outcome.then.states[-1]
    assert legal == LEADS


@pytest.mark.parametrize("deaf", [False, True])
def test_the_end_needs_nobody(deaf: bool) -> None:
    """Invariant I15: from every state after a drain the timers alone lead to `stopped`, and none outlives the end."""
    server = Server(SERVER, deaf)
    found = explore(server)
    assert found.complete and not found.faults
    assert not found.stuck(server.ended) and not found.cut_off(server.ended)
    for state in found.numbers:
        if "draining" in state[0].active:
            while state[1]:
                state = server.apply(state, min(state[1]))
            assert state[0].states == ("stopped",)


def test_an_end_that_waits_for_its_clients_is_found() -> None:
    text = chart_path("server").read_text()
    waits = text.replace(
        '<transition event="abort.timeout" target="stopped"/>', '<transition event="abort.timeout"/>'
    )
    assert waits != text
    server = Server(parse_chart(waits.encode(), "server"), deaf=True)
    assert explore(server).cut_off(server.ended)


def test_the_loop_is_told_once_to_drain_and_once_to_abort() -> None:
    sends = {
        (name, event): {send.event for send in outcome.sends if send.target == "loop"}
        for name, here in FOUND.items()
        for event in SERVER.events
        for _, outcome in outcomes(here, event)
    }
    assert {way: events for way, events in sends.items() if events} == {
        ("ready", "drain"): {"drain"},
        ("finishing", "drain"): {"abort"},
        ("finishing", "draining.timeout"): {"abort"},
    }


def test_a_timer_that_is_not_stopped_is_refused() -> None:
    """The end would find it armed."""
    text = chart_path("server").read_text()
    old = '<send target="#_timer" event="abort.timeout"/>'
    assert text.count(old) == 1
    with pytest.raises(ChartError):
        parse_chart(text.replace(old, "").encode(), "server")
