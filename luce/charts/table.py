"""A small chart as a transition table, for machines so many that each is one byte of an array.

The table is read off the interpreter: every reachable configuration gets a number, the initial one 0, and for every
event, configuration and set of guard answers the table holds the number of the next configuration. So one event steps
any number of machines with one look-up, and the chart in the file stays the only place that says what is legal.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from types import MappingProxyType

import attrs
import numpy as np
from numpy.typing import NDArray

from luce.charts.explorer import reachable
from luce.charts.interpreter import Configuration, initial, outcomes
from luce.charts.model import Chart
from luce.errors import ChartError, IllegalEvent

__all__ = ["ILLEGAL", "ChartTable", "compile_table"]

ILLEGAL = 255
"""Stands in the table where the chart has no transition. No configuration has this number."""
MAX_GUARDS = 8


@attrs.frozen(eq=False)
class ChartTable:
    """All that a chart can do, as bytes."""

    chart: Chart
    configurations: tuple[Configuration, ...] = attrs.field(repr=False)
    """By number, which is the state byte."""
    rows: Mapping[str, NDArray[np.uint8]] = attrs.field(repr=False)
    """For each event, uint8 of shape (2 ** guards * 256,): the next state byte, or ILLEGAL, at
    ``guard bits * 256 + state byte``. Bit i answers guard i of ``chart.guard_order``."""
    asking: frozenset[str] = attrs.field(repr=False)
    """Events that ask a guard in some configuration."""

    def number(self, state: str) -> int:
        """The state byte of the only configuration in which ``state`` is active.

        Raises:
            KeyError: the chart has no such state, or several configurations have it.
        """
        (found, *more) = self.numbers(state)
        if more:
            raise KeyError(f"{self.chart.name}: {state!r} is active in {1 + len(more)} configurations")
        return found

    def numbers(self, state: str) -> tuple[int, ...]:
        """The state bytes of all configurations in which ``state`` is active. Raises KeyError for none."""
        found = tuple(i for i, here in enumerate(self.configurations) if state in here.active)
        if not found:
            raise KeyError(f"{self.chart.name}: no configuration has the state {state!r}")
        return found

    def active(self, state: str, states: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """In which machines ``state`` is active: bool (n,) for the state bytes ``states``, uint8 (n,).

        Raises:
            KeyError: the chart has no such state.
        """
        return self._members[state].take(states)

    @functools.cached_property
    def _members(self) -> Mapping[str, NDArray[np.bool_]]:
        """For each state, bool (256,): is it active in the configuration of that number?"""
        found = {}
        for state in self.chart.states:
            found[state] = np.zeros(256, np.bool_)
            found[state][list(self.numbers(state))] = True
        return MappingProxyType(found)

    def after(
        self,
        event: str,
        before: NDArray[np.uint8],
        ids: NDArray[np.intp],
        bits: NDArray[np.uint8] | None = None,
    ) -> NDArray[np.uint8]:
        """What ``event`` makes of the machines ``ids``, without doing it.

        Args:
            before: uint8 (n,), the state byte of each.
            ids: (n,), what each is called in an error.
            bits: uint8 (n,), the guard answers of each. May be left out when the event asks none.

        Returns:
            uint8 (n,), the state bytes after the event.

        Raises:
            IllegalEvent: the chart has no transition for the event in one of them; names the first.
            ChartError: the chart has no such event, or the event asks guards and ``bits`` are missing.
            IndexError: bits that no guard has.
        """
        row = self.rows.get(event)
        if row is None:
            raise ChartError(f"{self.chart.name}: the chart has no event {event!r}")
        if bits is not None:
            after = row.take((bits.astype(np.uint16) << 8) | before)
        elif event in self.asking:
            raise ChartError(f"{self.chart.name}: event {event!r} asks guards; their bits are missing")
        else:
            after = row.take(before)
        # bytes.find is several times as fast as any reduction of numpy on the short ranges that are usual here
        at = after.tobytes().find(ILLEGAL)
        if at >= 0:
            raise IllegalEvent(f"{self.chart.name} {ids[at]}", self._names(int(before[at])), event)
        return after

    def step(
        self,
        event: str,
        states: NDArray[np.uint8],
        ids: NDArray[np.intp],
        bits: NDArray[np.uint8] | None = None,
    ) -> NDArray[np.uint8]:
        """Feeds ``event`` once to each of the machines ``ids``, all of them or none.

        Args:
            states: uint8, the state bytes of all machines, changed in place.
            ids: (n,), indices into ``states``, each at most once.
            bits: as in :meth:`after`, which also says what is raised.

        Returns:
            uint8 (n,), the state bytes after the event.
        """
        after = self.after(event, states.take(ids), ids, bits)
        states[ids] = after
        return after

    def _names(self, byte: int) -> tuple[str, ...]:
        if byte < len(self.configurations):
            return self.configurations[byte].states
        return (f"the unknown state byte {byte}",)


@functools.cache
def compile_table(chart: Chart) -> ChartTable:
    """The table of ``chart``, made once.

    Raises:
        ChartError: the chart sends messages (a byte has no mailbox), asks a guard when it is entered, or is too large
            for bytes.
    """
    found = reachable(chart)
    if len(found) > ILLEGAL:
        raise ChartError(f"{chart.name}: {len(found)} configurations do not fit a byte")
    if len(chart.guards) > MAX_GUARDS:
        raise ChartError(f"{chart.name}: {len(chart.guards)} guards do not fit a byte")
    sends = {send.event for send in initial(chart).sends}
    numbers = {here: number for number, here in enumerate(found)}
    rows: dict[str, NDArray[np.uint8]] = {}
    asking = set()
    for event in sorted(chart.events):
        row = np.full((1 << len(chart.guards), 256), ILLEGAL, np.uint8)
        for here, number in numbers.items():
            for known, outcome in outcomes(here, event):
                if known:
                    asking.add(event)
                sends.update(send.event for send in outcome.sends)
                if outcome.then is not None:
                    row[list(_matching(chart, known)), number] = numbers[outcome.then]
        rows[event] = row.reshape(-1)
        rows[event].flags.writeable = False
    if sends:
        raise ChartError(f"{chart.name}: sends {', '.join(sorted(sends))}; a table has nobody to send it for")
    return ChartTable(chart, found, MappingProxyType(rows), frozenset(asking))


def _matching(chart: Chart, known: Mapping[str, bool]) -> Iterator[int]:
    """All guard bits that agree with the answers in ``known``."""
    for bits in range(1 << len(chart.guards)):
        if all(bool(bits >> chart.guard_order.index(name) & 1) == answer for name, answer in known.items()):
            yield bits
