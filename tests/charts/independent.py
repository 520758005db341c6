"""Guards for any chart, and python-statemachine with its document order mended: see `luce/replay/independent.py`."""

from __future__ import annotations

from typing import Any

from statemachine.engines.sync import SyncEngine
from statemachine.orderedset import OrderedSet

from luce.charts.guards import guard
from luce.charts.model import Chart, Kind

__all__ = ["GuardTable", "guard_table", "mend"]


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


def mend(chart: Chart, machine_class: Any) -> None:
    """Repairs its document order: 3.2.2 numbers the states below each parent from the parent's own number on, so
    numbers repeat, and it looks for transitions in the order in which states were entered. Both decide which of two
    conflicting transitions wins and in what order states are entered (SCXML, sections 3.13 and Appendix D). luce's own
    charts do not depend on it, so they run unmended."""
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
