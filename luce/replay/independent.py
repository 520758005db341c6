"""The independent interpreter: python-statemachine runs the same chart text, and the two must agree.

Importing this module needs the package python-statemachine, which serving does not.

Cautions found by reading and running python-statemachine 3.2.2 (design-notes §2): documents are loaded
without its structural validation, so only luce's loader checks them; an event without a transition is ignored
unless `allow_event_without_transition` is false; a guard that cannot be found is silently false, so every
guard is set here before every event. Machines share what is made of their chart's text, which takes far longer
than a step; sessions are kept by class name, that of the first machine for all, but what a chart of luce can
ask, `In()` and its guards, is asked of the machine itself. A send to `#_actor` reaches nobody there and becomes
an internal `error.communication`, which no chart handles.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from statemachine.exceptions import TransitionNotAllowed
from statemachine.io.scxml.processor import SCXMLProcessor

from luce.charts.interpreter import START
from luce.charts.model import Chart
from luce.charts.table import ChartTable
from luce.replay.check import PASSIVE
from luce.trace.events import EventRecord

__all__ = ["Independent", "Voice"]


class _Model:
    """What python-statemachine evaluates conditions on: one bool attribute for each guard."""


def machine_class(chart: Chart, text: str) -> Any:
    """What python-statemachine makes of a chart's text."""
    processor = SCXMLProcessor(trusted=True)  # trusted: In() is only known to that evaluator
    processor.parse_scxml(chart.name, text.replace('datamodel="luce"', 'datamodel="python"'))
    made: Any = next(iter(processor.scs.values()))
    made.allow_event_without_transition = False
    return made


class Independent:
    """One machine of `chart` under python-statemachine.

    Args:
        text: of the chart.
        answers: of every guard, while it is entered.
        made: its class, if there is one that it may share.
        adjust: is given the chart and the class before it is used.
    """

    def __init__(
        self,
        chart: Chart,
        text: str,
        answers: Mapping[str, bool],
        *,
        made: Any = None,
        adjust: Callable[[Chart, Any], None] | None = None,
    ) -> None:
        self.chart = chart
        self._model = _Model()
        self._set(answers)
        made = made or machine_class(chart, text)
        if adjust is not None:
            adjust(chart, made)
        self._machine: Any = made(model=self._model)

    def _set(self, answers: Mapping[str, bool]) -> None:
        assert set(answers) == self.chart.guards
        for name, value in answers.items():
            setattr(self._model, name, value)

    def feed(self, event: str, answers: Mapping[str, bool]) -> bool:
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


class Voice:
    """Checks a sample of a trace: every machine from its start to its end, begun while there is something left.

    Args:
        texts: of the charts.
        most: steps; None is all.
        whole: machines that are under way then are followed to their ends.
    """

    def __init__(self, texts: Mapping[str, str], most: int | None = None, *, whole: bool = True) -> None:
        self.checked = 0
        self._whole = whole
        self._texts = texts
        self._most = most
        self._machines: dict[tuple[str, str | int], Independent] = {}
        self._classes: dict[str, Any] = {}

    def see(self, record: EventRecord, chart: Chart) -> str | None:
        """What is wrong with a record that luce's own interpreter takes, if anything."""
        if self._over:
            return None
        _, _, name, instance, event, bits, states, _ = record
        key = (name, instance)
        machine = self._machines.get(key)
        if event == START or (machine is None and name in PASSIVE):
            if self._full:
                return None
            machine = self._machines[key] = self._new(chart, bits)
        if machine is None:
            return None  # begun before the sample, or before the trace
        if event == START:
            self.checked += 1
            fault = None
        else:
            fault = self._fed(machine, event, bits)
        if fault is None and machine.configuration != states:
            fault = _other(event, machine)
        if not any(state in states for state in _open(chart)):
            del self._machines[key]
        return fault

    def see_range(
        self, record: EventRecord, table: ChartTable, ids: NDArray[np.intp], before: NDArray[np.uint8]
    ) -> str | None:
        """The same for a range of instances, whose state bytes were ``before``."""
        if self._over:
            return None
        _, bits, after = record.value
        for place, number in enumerate(ids.tolist()):
            key = (record.machine, number)
            machine = self._machines.get(key)
            if machine is None:
                if before[place] or self._full:  # not in its initial configuration
                    continue
                machine = self._machines[key] = self._new(table.chart, 0)
            fault = self._fed(machine, record.event, 0 if bits is None else int(bits[place]))
            if fault is None and machine.configuration != table.configurations[int(after[place])].states:
                fault = _other(record.event, machine)
            if fault is not None:
                return f"{record.machine} {number}: {fault}"
            if not after[place]:
                del self._machines[key]
        return None

    def forget(self) -> None:
        """What comes now does not follow from what came before."""
        self._machines.clear()

    @property
    def _full(self) -> bool:
        return self._most is not None and self.checked >= self._most

    @property
    def _over(self) -> bool:
        return self._full and not self._whole

    def _new(self, chart: Chart, bits: int) -> Independent:
        text = self._texts[chart.name]
        made = self._classes.get(chart.name)
        if made is None:
            made = self._classes[chart.name] = machine_class(chart, text)
        return Independent(chart, text, _answers(chart, bits), made=made)

    def _fed(self, machine: Independent, event: str, bits: int) -> str | None:
        self.checked += 1
        if not machine.feed(event, _answers(machine.chart, bits)):
            return f"python-statemachine finds {event} illegal in {', '.join(machine.configuration)}"
        return None


def _other(event: str, machine: Independent) -> str:
    return f"python-statemachine goes to {', '.join(machine.configuration)} by {event}"


def _answers(chart: Chart, bits: int) -> dict[str, bool]:
    return {name: bool(bits >> number & 1) for number, name in enumerate(chart.guard_order)}


def _open(chart: Chart) -> frozenset[str]:
    """States at the top that are not final."""
    return frozenset(
        chart.nodes[child].id for child in chart.nodes[0].children if chart.nodes[child].kind.value != "final"
    )
