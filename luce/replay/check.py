"""Does every recorded step follow from the chart? Each machine is stepped again, guards answered as they were.

The charts are those that stand in the trace. A record fits when its event is legal where its machine stood, asks the
guards whose bits are set, and leads where the record says. What is asked of each record costs a look-up: answers are
kept by configuration, event, bits and target.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections import deque
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Protocol

import attrs
import numpy as np
from numpy.typing import NDArray

from luce.charts.explorer import reachable
from luce.charts.interpreter import START, Configuration, advance, initial
from luce.charts.loader import parse_chart
from luce.charts.model import Chart
from luce.charts.table import ChartTable, compile_table
from luce.errors import ChartError, IllegalEvent, TraceFileError
from luce.trace.events import ANY, EventRecord
from luce.trace.reader import FileStart, Item
from luce.trace.schema import Gap, Header, Illegal

__all__ = ["CONTEXT", "Checker", "Divergence", "SecondOpinion", "charts_of", "first_divergence"]

CONTEXT = 4
"""Records of the machine that are shown before and after a divergence."""
PASSIVE = frozenset({"prefix_entry"})
"""Charts whose machines begin without a record: the first event finds them in their initial configuration. Their
records have the answers of all guards, whether the event asks or not."""
_UNKNOWN = 254
"""State byte of an instance that nobody has seen yet, behind a gap."""


@attrs.frozen
class Divergence:
    """The first record that does not fit."""

    record: EventRecord
    why: str
    before: tuple[EventRecord, ...]
    """Of the same machine, oldest first."""
    after: tuple[EventRecord, ...] = ()


class SecondOpinion(Protocol):
    """Another interpreter, asked about records that fit."""

    def see(self, record: EventRecord, chart: Chart) -> str | None:
        """What is wrong with it, if anything."""

    def see_range(
        self, record: EventRecord, table: ChartTable, ids: NDArray[np.intp], before: NDArray[np.uint8]
    ) -> str | None:
        """The same for a range of instances, whose state bytes were ``before``."""

    def forget(self) -> None:
        """What comes now does not follow from what came before."""


@attrs.define
class _Live:
    """A machine that is under way."""

    here: Configuration
    recent: deque[EventRecord] = attrs.field(factory=lambda: deque(maxlen=CONTEXT))


def charts_of(header: Header, path: object = "the trace") -> dict[str, Chart]:
    """The charts in a file's header.

    Raises:
        TraceFileError: one is no chart, or not the one that its hash names.
    """
    found = {}
    for name, text in header.charts.items():
        data = text.encode()
        if hashlib.sha256(data).hexdigest() != header.hashes.get(name):
            raise TraceFileError(
                str(path), f"the chart {name!r} in its header has another SHA-256 than it says"
            )
        try:
            found[name] = _parsed(data, f"{name}.scxml")
        except ChartError as error:
            raise TraceFileError(str(path), f"the chart {name!r} in its header: {error}") from None
    return found


@functools.lru_cache(maxsize=64)
def _parsed(data: bytes, label: str) -> Chart:
    """Once for all files of a trace, with what the interpreter finds out about it."""
    return parse_chart(data, label)


@functools.lru_cache(maxsize=64)
def _reachable(chart: Chart) -> Mapping[tuple[str, ...], Configuration]:
    """Configurations by their states, which no two share: no chart of luce has a history."""
    return {here.states: here for here in reachable(chart)}


class Checker:
    """Feed it the items of a trace in their order; :meth:`see` says what does not fit.

    Args:
        second: also asked about every record of a machine that was seen from its start.
    """

    def __init__(self, second: SecondOpinion | None = None) -> None:
        self.checked = 0
        """Records."""
        self.by_machine: dict[str, int] = {}
        self.lost = 0
        """Records that the recorder did not get."""
        self.charts: dict[str, Chart] = {}
        self._second = second
        self._live: dict[tuple[str, str | int], _Live] = {}
        self._tables: dict[str, tuple[ChartTable, NDArray[np.uint8]]] = {}
        self._known: dict[tuple[Configuration, str, int, tuple[str, ...]], Configuration | str] = {}
        self._entered: dict[tuple[str, int, tuple[str, ...]], Configuration | str] = {}
        self._configurations: dict[str, Mapping[tuple[str, ...], Configuration]] = {}
        self._open: dict[str, None] = {}
        """Runs whose server is on its way, as far as was seen."""
        self._run: str | None = None
        self._expected: int | None = None
        self._adopts = False
        """Behind a gap nobody knows where machines stand, until the next file says so."""
        self._ranges: dict[str, deque[EventRecord]] = {}

    @property
    def unended(self) -> tuple[str, ...]:
        """Runs whose server is not seen to stop: it was killed, or still runs, or the last records are gone."""
        return tuple(self._open)

    def see(self, item: Item) -> Divergence | None:
        if isinstance(item, EventRecord):
            return self._see_record(item)
        if isinstance(item, FileStart):
            return self._begin(item)
        if isinstance(item[2], Gap):
            self.lost += item[2].lost
            self._expected = None
            self._forget()
            self._adopts = True
        elif isinstance(item[2], Illegal):
            return self._forbidden(item[0], item[1], item[2])
        return None

    def _forbidden(self, seq: int, t: float, fault: Illegal) -> Divergence:
        """The server that recorded this has ended by it."""
        machine, _, name = fault.machine.partition(" ")
        ids = [one for (chart, one) in self._live if chart == machine and str(one) == name]
        record = EventRecord(seq, t, machine, ids[0] if ids else name, fault.event, 0, fault.configuration)
        why = "its chart has no transition for this event there; the server ended by it"
        return Divergence(record, why, self._recent(machine, record.id))

    def _forget(self) -> None:
        self._live.clear()
        for _, states in self._tables.values():
            states.fill(_UNKNOWN)
        if self._second is not None:
            self._second.forget()

    # -- files --------------------------------------------------------------------------------------------------------

    def _begin(self, start: FileStart) -> Divergence | None:
        """A file says where everything stands. That is compared with where it was left, if files follow each other."""
        header = start.header
        goes_on = self._run == header.run and self._expected == header.first and not self._adopts
        if self._run != header.run or not self.charts:
            self.charts = charts_of(header, start.path)
            self._known.clear()
            self._entered.clear()
            self._configurations = {name: _reachable(chart) for name, chart in self.charts.items()}
        self._run, self._expected, self._adopts = header.run, header.first, False
        stated: dict[tuple[str, str | int], Configuration] = {}
        for machine, name, states in (
            (one.machine, one.id, one.configuration) for one in start.snapshot.machines
        ):
            here = self._configurations.get(machine, {}).get(states)
            if here is None:
                raise TraceFileError(
                    start.path,
                    f"its snapshot has {machine} {name} in {', '.join(states)}, where no chart leads",
                )
            stated[machine, name] = here
        if header.first == 0 or any(machine == "server" for machine, _ in stated):
            self._open[header.run] = None
        if goes_on:
            return self._compare(start, stated)
        self._forget()
        self._live = {key: _Live(here) for key, here in stated.items()}
        self._tables = {}
        for machine, table in start.snapshot.tables.items():
            if machine not in self.charts:
                raise TraceFileError(
                    start.path, f"its snapshot has a table of {machine!r}, which is no chart of it"
                )
            found = np.frombuffer(table, np.uint8).copy()
            self._tables[machine] = (compile_table(self.charts[machine]), found)
        return None

    def _compare(
        self, start: FileStart, stated: Mapping[tuple[str, str | int], Configuration]
    ) -> Divergence | None:
        left = {key: live.here for key, live in self._live.items()}
        for key in sorted(left.keys() | stated.keys(), key=str):
            if key not in left and key[0] in PASSIVE and stated[key] is initial(self.charts[key[0]]).then:
                continue  # nothing has happened to it
            if left.get(key) is not stated.get(key):
                was = left[key].states if key in left else ("not there",)
                now = stated[key].states if key in stated else ("not there",)
                record = EventRecord(start.header.first, start.header.clock, *key, "(snapshot)", 0, now)
                why = f"the file before left it in {', '.join(was)}"
                recent = tuple(self._live[key].recent) if key in self._live else ()
                return Divergence(record, why, recent)
        for machine, (_, states) in self._tables.items():
            if states.tobytes() != start.snapshot.tables.get(machine):
                record = EventRecord(
                    start.header.first, start.header.clock, machine, ANY, "(snapshot)", 0, ()
                )
                return Divergence(record, "the file before left its instances in other states", ())
        return None

    # -- records ------------------------------------------------------------------------------------------------------

    def _see_record(self, record: EventRecord) -> Divergence | None:
        seq, _, machine, name, event, bits, states, _ = record
        expected, self._expected = self._expected, seq + 1
        if expected is not None and seq != expected:
            return Divergence(record, f"record {expected} should stand here", self._recent(machine, name))
        self.checked += 1
        self.by_machine[machine] = self.by_machine.get(machine, 0) + 1
        chart = self.charts.get(machine)
        if chart is None:
            # What was read from outside is no step of a machine.
            return None if event == "read" else Divergence(record, "the trace has no chart of this name", ())
        if name == ANY:
            return self._see_range(record)
        key = (machine, name)
        live = self._live.get(key)
        if live is None:
            found = self._enter(record, chart)
        elif event == START:
            found = "it starts, and has started before"
        else:
            question = (live.here, event, bits, states)
            kept = self._known.get(question)
            found = kept if kept is not None else self._known.setdefault(question, _stepped(*question))
        if isinstance(found, str):
            return Divergence(record, found, self._recent(machine, name))
        if live is None:
            live = self._live[key] = _Live(found)
        live.here = found
        live.recent.append(record)
        if self._second is not None and (why := self._second.see(record, chart)) is not None:
            return Divergence(record, why, tuple(live.recent)[:-1])
        if found.finished:
            del self._live[key]
            if machine == "server" and self._run is not None:
                self._open.pop(self._run, None)
        return None

    def _enter(self, record: EventRecord, chart: Chart) -> Configuration | str:
        machine, event, bits, states = record.machine, record.event, record.guards, record.configuration
        if event == START:
            question = (machine, bits, states)
            found = self._entered.get(question)
            if found is None:
                found = self._entered[question] = _entered(chart, bits, states)
            return found
        if self._adopts:
            here = self._configurations[machine].get(states)
            return here if here is not None else "no way through the chart leads there"
        if machine in PASSIVE:
            here = initial(chart).then
            assert here is not None
            return _stepped(here, event, bits, states)
        return "it has not started, or has ended before"

    def _recent(self, machine: str, name: str | int) -> tuple[EventRecord, ...]:
        if name == ANY:
            return tuple(self._ranges.get(machine, ()))
        live = self._live.get((machine, name))
        return () if live is None else tuple(live.recent)

    def _see_range(self, record: EventRecord) -> Divergence | None:
        machine, event = record.machine, record.event
        recent = self._ranges.setdefault(machine, deque(maxlen=CONTEXT))
        if machine not in self._tables or record.value is None:
            return Divergence(record, "the trace does not say how its instances began", tuple(recent))
        table, states = self._tables[machine]
        ids, bits, after = record.value
        if len(ids) and int(ids.max()) >= len(states):
            return Divergence(record, f"there are {len(states)} instances", tuple(recent))
        before = states.take(ids)
        unknown = before == _UNKNOWN
        try:
            if unknown.any():
                states[ids[unknown]] = after[unknown]
                known = ~unknown
                ids, after, before = ids[known], after[known], before[known]
                bits = None if bits is None else bits[known]
            found = table.after(event, before, ids, bits)
        except (IllegalEvent, ChartError, IndexError) as error:
            return Divergence(record, str(error), tuple(recent))
        wrong = np.flatnonzero(found != after)
        if len(wrong):
            at = int(wrong[0])
            should = table.configurations[int(found[at])].states
            return Divergence(record, f"{machine} {ids[at]} goes to {', '.join(should)}", tuple(recent))
        states[ids] = after
        if self._second is not None and not unknown.any():
            why = self._second.see_range(record, table, ids, before)
            if why is not None:
                return Divergence(record, why, tuple(recent))
        recent.append(record)
        return None


def _asked(chart: Chart, bits: int, asked: list[int], name: str) -> bool:
    number = chart.guard_order.index(name)
    asked.append(number)
    return bool(bits >> number & 1)


def _entered(chart: Chart, bits: int, states: tuple[str, ...]) -> Configuration | str:
    asked: list[int] = []
    then = initial(chart, lambda name: _asked(chart, bits, asked, name)).then
    return _judged(chart, then, START, bits, asked, states)


def _stepped(here: Configuration, event: str, bits: int, states: tuple[str, ...]) -> Configuration | str:
    chart = here.chart
    asked: list[int] = []
    then = advance(here, event, lambda name: _asked(chart, bits, asked, name)).then
    if then is None:
        return f"{event} is illegal in {', '.join(here.states)}{_answers(chart, bits, asked)}"
    return _judged(chart, then, event, bits, asked, states)


def _judged(
    chart: Chart, then: Configuration | None, event: str, bits: int, asked: list[int], states: tuple[str, ...]
) -> Configuration | str:
    assert then is not None
    if chart.name not in PASSIVE and bits & ~sum({1 << number for number in asked}):
        return f"{event} does not ask all the guards whose bits are set{_answers(chart, bits, asked)}"
    if then.states != states:
        return f"{event} leads to {', '.join(then.states)}{_answers(chart, bits, asked)}"
    return then


def _answers(chart: Chart, bits: int, asked: Iterable[int]) -> str:
    said = [f"{'' if bits >> number & 1 else 'not '}{chart.guard_order[number]}" for number in asked]
    return f" ({', '.join(said)})" if said else ""


def first_divergence(items: Iterable[Item], checker: Checker) -> Divergence | None:
    """The first record that does not fit, with what its machine did before and after. Reads no further than that."""
    rest = iter(items)
    for item in rest:
        found = checker.see(item)
        if found is not None:
            same = (found.record.machine, found.record.id)
            after: list[EventRecord] = []
            # What cannot be read behind it takes nothing from what was found.
            with contextlib.suppress(TraceFileError):
                after += islice(
                    (one for one in rest if isinstance(one, EventRecord) and (one.machine, one.id) == same),
                    CONTEXT,
                )
            return attrs.evolve(found, after=tuple(after))
    return None
