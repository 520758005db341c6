"""The one event stream: everything that happens is a record of a machine's step (design §1), or of what was read from
outside that steps depend on.

Status, metrics, logs, the live page, traces and replay are all read from here; none keeps its own truth.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from luce.charts.interpreter import StepFields
from luce.tuples import new_tuple

__all__ = ["EventRecord", "EventStream"]


class EventRecord(NamedTuple):
    """One accepted event. A tuple, because one is made for every event of every machine."""

    seq: int
    t: float
    """Seconds on the server's clock (trio's, so that virtual time covers it)."""
    machine: str
    """Chart name."""
    id: str | int
    """Which instance of the chart."""
    event: str
    """Event name; '(start)' for the initial entry."""
    guards: int
    """Bits of the guards that were read, in the chart's order."""
    configuration: tuple[str, ...]
    """Active states after the step."""
    value: int | None = None
    """What was read, in records of :meth:`EventStream.read`."""


_VALUES = len(EventRecord._fields) - 1
"""Without the number."""
_NO_VALUE = (None,)


class EventStream:
    """A bounded ring of records with any number of listeners. Single-threaded: the trio thread owns it.

    Args:
        clock: seconds, monotonic.
        keep: records kept for those who look back.
    """

    def __init__(self, clock: Callable[[], float], keep: int = 65536) -> None:
        self._clock = clock
        self._ring: deque[tuple[Any, ...]] = deque(maxlen=keep)
        """Records without their number. Plain tuples of plain values, which the garbage collector need not look at in
        every round; records are made of them for those who look back."""
        self._seq = 0
        self._listeners: list[tuple[str | None, Callable[[EventRecord], None]]] = []
        self._routes: dict[str, tuple[Callable[[EventRecord], None], ...]] = {}
        """Those of them who are told, by machine; found when it is first needed."""

    def observe(self, step: StepFields) -> None:
        """Record a machine's step; this is the observer of every machine."""
        entry = (self._clock(),) + step  # noqa: RUF005 - unpacking makes a list first
        if self._listeners:
            self._add(entry)
        else:
            self._ring.append(entry)
            self._seq += 1

    def read(self, source: str, name: str, value: int | None) -> None:
        """Record what was read from outside every machine: ``source`` stands in the machine's place, ``name`` says
        which of its values, None is that it has none. The event is 'read'."""
        self._add((self._clock(), source, name, "read", 0, (), value))

    def _add(self, entry: tuple[Any, ...]) -> None:
        self._ring.append(entry)
        self._seq += 1
        if self._listeners:
            told = self._routes.get(entry[1])
            if told is None:
                told = self._route(entry[1])
            if told:
                # As in `observe`: unpacking would make lists first.
                numbered = (self._seq - 1,) + entry  # noqa: RUF005
                record = new_tuple(EventRecord, numbered if len(entry) == _VALUES else numbered + _NO_VALUE)
                for listener in told:
                    listener(record)

    def _route(self, machine: str) -> tuple[Callable[[EventRecord], None], ...]:
        told = tuple(listener for wanted, listener in self._listeners if wanted in (None, machine))
        self._routes[machine] = told
        return told

    def listen(
        self, listener: Callable[[EventRecord], None], machine: str | None = None
    ) -> Callable[[], None]:
        """Call ``listener`` with every record from now on; returns the function that ends it.

        Args:
            machine: only with those of this chart, which spares the others the cost.
        """
        entry = (machine, listener)
        self._listeners.append(entry)
        self._routes.clear()

        def stop() -> None:
            self._listeners.remove(entry)
            self._routes.clear()

        return stop

    def __iter__(self) -> Iterator[EventRecord]:
        ring = tuple(self._ring)
        first = self._seq - len(ring)
        return (EventRecord(seq, *entry) for seq, entry in enumerate(ring, first))

    def __len__(self) -> int:
        return len(self._ring)
