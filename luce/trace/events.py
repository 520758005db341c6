"""The one event stream: everything that happens is a record of a machine's step (design §1), or of what was read from
outside that steps depend on.

Status, metrics, logs, the live page, traces and replay are all read from here; none keeps its own truth.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, NamedTuple

import attrs
import numpy as np
import trio
from numpy.typing import NDArray

from luce.charts.interpreter import StepFields
from luce.tuples import new_tuple

__all__ = ["ANY", "EventReader", "EventRecord", "EventStream", "News", "Note", "Range", "RangeFields"]

ANY = ""
"""Stands in the place of the instance where an event stepped a range of them."""

RangeFields = tuple[str, NDArray[np.intp], NDArray[np.uint8] | None, NDArray[np.uint8]]
"""One event of a chart that is run as a table: its name, which instances handled it, guard bits of each (None when the
event asks none), and the state byte of each after it."""


@attrs.define(eq=False)
class Range:
    """What a range of instances did at one event. Nobody changes it, nor its arrays."""

    ids: NDArray[np.intp]
    """(n,), which, each at most once."""
    bits: NDArray[np.uint8] | None
    """(n,), guard answers of each in the chart's order; None when the event asks none."""
    after: NDArray[np.uint8]
    """(n,), the state byte of each after the event."""

    def __iter__(self) -> Iterator[Any]:
        return iter((self.ids, self.bits, self.after))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Range):
            return NotImplemented
        return all(
            mine is theirs or (mine is not None and theirs is not None and np.array_equal(mine, theirs))
            for mine, theirs in zip(self, other, strict=True)
        )

    __hash__ = None  # type: ignore[assignment]


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
    value: Any = None
    """What was read, in records of :meth:`EventStream.read`; a :class:`Range` in those of
    :meth:`EventStream.observe_range`."""


Note = tuple[int, float, Callable[..., object], tuple[Any, ...]]
"""A detail: the number of the record that it stands before, its time, and what makes it from what."""


class News(NamedTuple):
    """What has come since somebody last looked."""

    first: int
    """Number of the first of ``entries``."""
    entries: list[tuple[Any, ...]]
    """Records without their number, in plain tuples; a value only where there is one."""
    details: list[Note]
    lost: int
    """Records that fell out of the ring before anybody looked."""


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
        self._readers: list[EventReader] = []
        self.detailed = False
        """Does anybody want details? Kept, not worked out: it is asked several times a step."""
        self.content = False
        """May details say what was asked and answered?"""

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

    def observe_range(self, machine: str, step: RangeFields) -> None:
        """Record one event that a range of a chart's instances handled, in one record: its id is :data:`ANY`, what each
        of them did is its value. The arrays are kept as they are: nobody may change them."""
        event, ids, bits, after = step
        self._add((self._clock(), machine, ANY, event, 0, (), Range(ids, bits, after)))

    # -- for who reads everything -------------------------------------------------------------------------------------

    def now(self) -> float:
        """Seconds on the clock of the records."""
        return self._clock()

    @property
    def next_number(self) -> int:
        """Of the next record."""
        return self._seq

    def reader(self, *, content: bool = False, most_details: int | None = None) -> EventReader:
        """Somebody who takes everything from now on, details too, until it is closed.

        Args:
            content: details may say what was asked and answered, not only how much.
            most_details: that are kept for it, the latest ones; None keeps all. For who may stop taking and stay.
        """
        reader = EventReader(self, content, most_details)
        self.join(reader)
        return reader

    def detail(self, make: Callable[..., object], *given: Any) -> None:
        """Note something beside the charts' steps, a plan or an arrival, if anybody wants to know.

        Args:
            make: turns ``given`` into what is recorded. Called later and maybe by another thread, so that it costs
                nothing here; ``given`` must not change. What is made of many objects is better given as few: they stay
                until then, and the garbage collector looks at each.
        """
        if self.detailed:
            note = (self._seq, self._clock(), make, given)
            for reader in self._readers:
                reader.notes.append(note)

    def join(self, reader: EventReader) -> None:
        """Tell it details, after :meth:`leave` again. Idempotent, as that is."""
        if reader not in self._readers:
            self._readers.append(reader)
            self.detailed = True
            self.content |= reader.content

    def leave(self, reader: EventReader) -> None:
        """Tell it no details any more."""
        if reader in self._readers:
            self._readers.remove(reader)
            self.detailed = bool(self._readers)
            self.content = any(one.content for one in self._readers)

    def lull(self) -> None:
        """The loop has launched a step: until the device is done with it, the host has time for those who read."""
        for reader in self._readers:
            if reader.waits is not None:
                reader.waits.set()
                reader.waits = None

    def since(self, number: int) -> tuple[int, list[tuple[Any, ...]], int]:
        """Records from ``number`` on as far as they are still there: number of the first, records without their number,
        and how many are lost."""
        fresh = self._seq - number
        found = list(islice(reversed(self._ring), fresh))
        found.reverse()
        return self._seq - len(found), found, fresh - len(found)

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


class EventReader:
    """Takes everything that a stream is told, piece by piece. Made by :meth:`EventStream.reader`.

    What it does not take in time falls out of the stream's ring and is counted as lost; details are kept for it, as
    many as it wants.
    """

    def __init__(self, stream: EventStream, content: bool, most_details: int | None = None) -> None:
        self._stream = stream
        self.content = content
        self.next = stream.next_number
        """Number of the first record that it has not taken."""
        self._most_details = most_details
        self.notes = self._no_notes()
        self.waits: trio.Event | None = None
        """Set by the stream at the next lull."""

    async def lull(self, at_most: float) -> None:
        """Return when work costs the step loop least: when it has just launched a step, or, while it launches none,
        after ``at_most`` seconds."""
        with trio.move_on_after(at_most):
            self.waits = trio.Event()
            await self.waits.wait()

    def take(self) -> News:
        """What has come since the last time."""
        first, entries, lost = self._stream.since(self.next)
        self.next = self._stream.next_number
        notes, self.notes = self.notes, self._no_notes()
        return News(first, entries, notes if isinstance(notes, list) else list(notes), lost)

    def close(self) -> None:
        """It takes no more. Idempotent."""
        self._stream.leave(self)
        self.notes = self._no_notes()

    def _no_notes(self) -> list[Note] | deque[Note]:
        return [] if self._most_details is None else deque(maxlen=self._most_details)
