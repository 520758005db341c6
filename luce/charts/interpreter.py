"""Runs a chart: `machine.feed(event) -> sends`. No I/O, no clock, no tasks.

Theory of operation. A chart has tens of configurations and an actor sees the same few of them all day, so
each answer of `semantics.run_macrostep` is computed once and kept. What a macrostep depends on, besides the
configuration and the event, is the guards it asks, and which ones it asks depends on the answers to earlier
ones. So the memo of one (configuration, event) is a decision tree: a `Question` names a guard and leads on by
its answer, an `Outcome` is the end of a path. A warm event is one dictionary look-up and one call for each
guard that matters; most events ask none. Configurations are interned for each chart, so comparing two of them
is comparing identities, and machines of one chart share all of it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, final

import attrs

from luce.charts.guards import bind_guards
from luce.charts.loader import load_chart
from luce.charts.model import Chart, Send
from luce.charts.semantics import Macrostep, run_macrostep
from luce.errors import ChartError, IllegalEvent

__all__ = [
    "START",
    "Configuration",
    "Machine",
    "Outcome",
    "Send",
    "Step",
    "StepFields",
    "advance",
    "entries",
    "initial",
    "outcomes",
]

START = "(start)"
"""Stands in the event field of the `Step` that enters a chart."""


class Step(NamedTuple):
    """One record of the event stream: what happened to which machine. Sequence number and time come later.

    A tuple, because one is made for every event of every machine.
    """

    machine: str
    """The chart's name."""
    id: str | int
    event: str
    guards: int
    """Bit i is set when guard i of `Chart.guard_order` was asked and answered true."""
    configuration: tuple[str, ...]
    """After the event: all active states in document order. Interned."""


StepFields = tuple[str, str | int, str, int, tuple[str, ...]]
"""Those of a :class:`Step`, in a plain tuple or in one."""


@attrs.frozen(eq=False)
class Configuration:
    """One set of active states together with what the histories remember. Interned: compare with `is`."""

    chart: Chart = attrs.field(repr=False)
    states: tuple[str, ...]
    active: frozenset[str] = attrs.field(repr=False)
    numbers: frozenset[int] = attrs.field(repr=False)
    history: tuple[tuple[int, tuple[int, ...]], ...]
    finished: bool
    table: dict[str, Question | Outcome] = attrs.field(repr=False, factory=dict, init=False)


@final
@attrs.frozen(eq=False)
class Outcome:
    """The end of a path through the guards. `then` is None when the event is illegal."""

    then: Configuration | None
    sends: tuple[Send, ...]


@final
@attrs.define(eq=False)
class Question:
    """Asks a guard. A branch is filled in when it is first needed."""

    name: str
    guard: int
    """Its number in `Chart.guard_order`."""
    bit: int
    known: Mapping[str, bool]
    """The answers that led here."""
    yes: Question | Outcome | None = None
    no: Question | Outcome | None = None


class _NeedGuardError(Exception):
    def __init__(self, name: str) -> None:
        self.name = name


def _intern(chart: Chart, step: Macrostep) -> Configuration:
    key = (step.active, step.history)
    found = chart.configurations.get(key)
    if found is None:
        names = tuple(sys.intern(chart.nodes[i].id) for i in sorted(step.active))
        found = Configuration(chart, names, frozenset(names), step.active, step.history, step.finished)
        chart.configurations[key] = found
    return found


def _compute(chart: Chart, here: Configuration, event: str, known: Mapping[str, bool]) -> Question | Outcome:
    """The outcome under the guard answers in `known`, or the next question."""

    def ask(name: str) -> bool:
        if name not in known:
            raise _NeedGuardError(name)
        return known[name]

    try:
        step = run_macrostep(chart, here.numbers, dict(here.history), event, ask)
    except _NeedGuardError as need:
        index = chart.guard_order.index(need.name)
        return Question(need.name, index, 1 << index, known)
    if step is None:
        return Outcome(None, ())
    return Outcome(_intern(chart, step), step.sends)


def _first(chart: Chart, here: Configuration, event: str) -> Question | Outcome:
    """The root of the decision tree of `event` in `here`, from the memo if it is there."""
    found = here.table.get(event)
    if found is None:
        if not here.states or here.finished or (event not in chart.events and not chart.wildcards):
            return Outcome(None, ())  # not kept: names from outside must not fill the memo
        found = here.table[event] = _compute(chart, here, event, {})
    return found


def _branch(here: Configuration, event: str, above: Question, answer: bool) -> Question | Outcome:
    """Where `answer` leads from `above`; worked out on first use."""
    found = above.yes if answer else above.no
    if found is None:
        found = _compute(here.chart, here, event, {**above.known, above.name: answer})
        if answer:
            above.yes = found
        else:
            above.no = found
    return found


def initial(chart: Chart, guards: Callable[[str], bool] | None = None) -> Outcome:
    """Enters the chart. Most charts ask no guard on the way in; one that does needs `guards`."""
    step = run_macrostep(chart, (), {}, None, guards or _no_guards)
    assert step is not None
    return Outcome(_intern(chart, step), step.sends)


def entries(chart: Chart) -> Iterator[tuple[Mapping[str, bool], Outcome]]:
    """Every way to enter the chart: the guards asked with their answers, and where that leads."""

    def walk(known: Mapping[str, bool]) -> Iterator[tuple[Mapping[str, bool], Outcome]]:
        def ask(name: str) -> bool:
            if name not in known:
                raise _NeedGuardError(name)
            return known[name]

        try:
            entered = initial(chart, ask)
        except _NeedGuardError as need:
            for answer in (True, False):
                yield from walk({**known, need.name: answer})
        else:
            yield known, entered

    yield from walk({})


def _no_guards(name: str) -> bool:
    raise ChartError(f"entering the chart asks guard {name!r}")


def outcomes(here: Configuration, event: str) -> Iterator[tuple[Mapping[str, bool], Outcome]]:
    """Every way `event` can go in `here`: the guards asked with their answers, and where that leads."""

    def walk(
        node: Question | Outcome, known: Mapping[str, bool]
    ) -> Iterator[tuple[Mapping[str, bool], Outcome]]:
        if type(node) is not Question:
            yield known, node
            return
        for answer in (True, False):
            yield from walk(_branch(here, event, node, answer), {**known, node.name: answer})

    yield from walk(_first(here.chart, here, event), {})


def advance(here: Configuration, event: str, ask: Callable[[str], bool]) -> Outcome:
    """What `event` does in `here`: `Machine.feed` as a pure function, for models."""
    node = _first(here.chart, here, event)
    while type(node) is Question:
        node = _branch(here, event, node, ask(node.name))
    return node


class Machine:
    """One running instance of a chart.

    `guards` is an object whose `@guard` methods are exactly the guards that the chart names. `observer` is
    called after every event that was accepted, `start` included, with the fields of a `Step` as a plain tuple:
    cheaper to make, and nothing that the garbage collector need look at.
    """

    __slots__ = ("_guards", "_name", "chart", "current", "id", "observer")

    def __init__(
        self,
        chart: Chart | str,
        guards: object,
        *,
        id: str | int = 0,  # noqa: A002 - the word the event records use
        observer: Callable[[StepFields], object] | None = None,
    ) -> None:
        self.chart = load_chart(chart) if isinstance(chart, str) else chart
        self.id = id
        self._name = self.chart.name
        self.observer = observer
        self._guards = bind_guards(self.chart, guards)
        self.current = Configuration(self.chart, (), frozenset(), frozenset(), (), False)
        """The interned configuration, to be read only. Compare with `is`; a question that is asked often may keep its
        answers by configuration."""

    def start(self) -> tuple[Send, ...]:
        """Enters the initial configuration and returns its sends. Called once, before any event."""
        if self.current.states:
            raise ChartError(f"{self.chart.name} {self.id}: already started")
        bits = 0

        def ask(name: str) -> bool:
            nonlocal bits
            index = self.chart.guard_order.index(name)
            answer = self._guards[index]()
            bits |= answer << index
            return answer

        outcome = initial(self.chart, ask)
        assert outcome.then is not None
        self.current = outcome.then
        if self.observer is not None:
            self.observer((self._name, self.id, START, bits, self.current.states))
        return outcome.sends

    def feed(self, event: str) -> tuple[Send, ...]:
        """Handles one event completely and returns the messages to send, in order.

        Raises IllegalEvent, and changes nothing, when the chart has no transition for the event here.
        """
        here = self.current
        try:
            node = here.table[event]
        except KeyError:
            node = _first(self.chart, here, event)
        bits = 0
        while type(node) is Question:  # cheaper than isinstance, and this is the hot path
            if self._guards[node.guard]():
                bits |= node.bit
                node = node.yes or _branch(here, event, node, True)
            else:
                node = node.no or _branch(here, event, node, False)
        then = node.then
        if then is None:
            raise IllegalEvent(f"{self.chart.name} {self.id}", here.states, event)
        self.current = then
        observer = self.observer
        if observer is not None:
            observer((self._name, self.id, event, bits, then.states))
        return node.sends

    @property
    def configuration(self) -> tuple[str, ...]:
        """All active states in document order; empty before `start`. Interned."""
        return self.current.states

    def active(self, state: str) -> bool:
        """Whether `state` is active, SCXML's `In(state)`. Raises KeyError for a name unknown to the chart."""
        if state in self.current.active:
            return True
        if state not in self.chart.states:
            raise KeyError(state)
        return False

    @property
    def finished(self) -> bool:
        """Whether a final state of the chart itself was reached. Nothing is accepted any more."""
        return self.current.finished

    def accepts(self, event: str) -> bool:
        """Whether `feed(event)` would be legal now. Asks the guards that matter."""
        index = self.chart.guard_order.index
        return advance(self.current, event, lambda name: self._guards[index(name)]()).then is not None

    def __repr__(self) -> str:
        return f"<{self.chart.name} {self.id}: {', '.join(self.configuration) or 'not started'}>"
