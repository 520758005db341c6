"""The independent interpreter: python-statemachine runs the same chart file, and the two must agree.

Cautions found by reading and running python-statemachine 3.2.2 (design-notes §2): documents are loaded
without its structural validation, so only luce's loader checks them; an event without a transition is ignored
unless `allow_event_without_transition` is false; a guard that cannot be found is silently false, so every
guard is set here before every event; sessions are kept by class name and never freed, so each machine gets
its own processor. A send to `#_actor` reaches nobody there and becomes an internal `error.communication`,
which no chart handles.
"""

from __future__ import annotations

from typing import Any

from statemachine.engines.sync import SyncEngine
from statemachine.exceptions import TransitionNotAllowed
from statemachine.io.scxml.processor import SCXMLProcessor
from statemachine.orderedset import OrderedSet

from luce.charts.guards import guard
from luce.charts.model import Chart, Kind

__all__ = ["GuardTable", "Independent", "guard_table"]


class GuardTable:
    """A guard object for any chart: answers come from a dictionary."""

    answers: dict[str, bool]
    asked: list[str]


def guard_table(chart: Chart) -> GuardTable:
    """A guard object whose class has exactly the guards that `chart` names, all false at first."""

    def make(name: str) -> Any:
        def method(self: GuardTable) -> bool:
            self.asked.append(name)
            return self.answers[name]

        return guard(method)

    table: GuardTable = type("Guards", (GuardTable,), {name: make(name) for name in chart.guards})()
    table.answers = dict.fromkeys(chart.guards, False)
    table.asked = []
    return table


def _mend(chart: Chart, machine_class: Any) -> None:
    for node in chart.nodes[1:]:
        if node.kind is not Kind.HISTORY:
            machine_class.states_map[node.id].document_order = node.index
    machine_class._get_engine = lambda machine: _MendedEngine(machine)


class _MendedEngine(SyncEngine):  # type: ignore[misc]
    def _select_transitions(self, trigger_data: Any, predicate: Any) -> Any:
        enabled: OrderedSet[Any] = OrderedSet()
        atomic = [state for state in self.sm.configuration if state.is_atomic]
        for state in sorted(atomic, key=lambda state: state.document_order):
            transition = self._first_transition_that_matches(state, trigger_data, predicate)
            if transition is not None:
                enabled.add(transition)
        return self._filter_conflicting_transitions(enabled)


class _Model:
    """What python-statemachine evaluates conditions on: one bool attribute for each guard."""


class Independent:
    """One machine of `chart` under python-statemachine.

    `mended` repairs its document order: 3.2.2 numbers the states below each parent from the parent's own
    number on, so numbers repeat, and it looks for transitions in the order in which states were entered. Both
    decide which of two conflicting transitions wins and in what order states are entered (SCXML, sections
    3.13 and Appendix D). luce's own charts do not depend on it, so they run unmended.
    """

    def __init__(self, chart: Chart, text: str, answers: dict[str, bool], *, mended: bool = False) -> None:
        self.chart = chart
        self._model = _Model()
        self._set(answers)
        processor = SCXMLProcessor(trusted=True)  # trusted: In() is only known to that evaluator
        processor.parse_scxml(chart.name, text.replace('datamodel="luce"', 'datamodel="python"'))
        machine_class = next(iter(processor.scs.values()))
        machine_class.allow_event_without_transition = False
        if mended:
            _mend(chart, machine_class)
        self._machine: Any = machine_class(model=self._model)

    def _set(self, answers: dict[str, bool]) -> None:
        assert set(answers) == self.chart.guards
        for name, value in answers.items():
            setattr(self._model, name, value)

    def feed(self, event: str, answers: dict[str, bool]) -> bool:
        """Whether the event was legal."""
        self._set(answers)
        try:
            self._machine.send(event)
        except TransitionNotAllowed:
            return False
        return True

    @property
    def configuration(self) -> tuple[str, ...]:
        """Active states in the chart's document order."""
        active = {state.id for state in self._machine.configuration}
        assert active <= set(self.chart.states), active
        return tuple(name for name in self.chart.states if name in active)
