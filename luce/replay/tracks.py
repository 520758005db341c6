"""Steps, pictures and counts of a trace, put together from its records: what timelines draw."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import attrs
import numpy as np

from luce.charts.model import Chart
from luce.charts.table import compile_table
from luce.replay.check import charts_of
from luce.replay.phases import ENDS, phase_in
from luce.trace.events import ANY, EventRecord
from luce.trace.reader import FileStart, Item
from luce.trace.schema import Arrival, Encoded, Failed, Gap, Landed, Launched, Planned, Snapshot

__all__ = ["Counts", "Encode", "Fault", "Lost", "Phase", "Seen", "Step", "Tracks", "seen"]


@attrs.frozen
class Phase:
    """A request comes into a phase, or to its end."""

    t: float
    id: str
    phase: str
    before: str | None
    """None: it begins, or the trace does."""
    order: int | None

    @property
    def ends(self) -> bool:
        return self.phase in ENDS


@attrs.frozen
class Step:
    """A step of the engine, from its launch to when its results were taken up."""

    number: int
    launched: float
    landed: float
    lanes: int
    rows: int
    device: float
    """Seconds."""


@attrs.frozen
class Encode:
    begun: float
    ended: float
    request: str
    digest: bytes
    rows: int


@attrs.frozen
class Counts:
    """As they are at a launch, and whenever requests have come, gone on or ended."""

    t: float
    waiting: int
    """Requests in the queue."""
    running: int
    parked: int
    free_blocks: int
    cached_blocks: int

    @property
    def blocks_left(self) -> int:
        """Blocks that can be taken: free ones, and cached ones, which nobody holds and which are given up for it."""
        return self.free_blocks + self.cached_blocks


@attrs.frozen
class Lost:
    t: float
    records: int


@attrs.frozen
class Fault:
    """A row or a copy failed."""

    t: float
    slot: int
    what: str
    message: str


Seen = Phase | Step | Encode | Counts | Lost | Fault

_PARKED, _WAITING, _RUNNING = "parked", ("queued", "following"), ("encoding", "staging", "decoding")


class Tracks:
    """Told the items of a trace, or of a server's stream, in their order; says what happens, in order of its end.

    Memory is that of the requests under way.

    Args:
        block_chart: of the key/value blocks; None where there is none.
        snapshot: how everything stands before the first item.
    """

    def __init__(self, block_chart: Chart | None, snapshot: Snapshot) -> None:
        self._orders: dict[str, int] = {}
        self._flights: dict[int, tuple[float, int, int]] = {}
        """Steps in flight: when launched, lanes, rows."""
        self._rows = 0
        self._told: tuple[int, int, int] | None = None
        """Requests waiting, running and parked in the newest counts."""
        self._free = self._cached = -1
        """State bytes."""
        self.begin(block_chart, snapshot)

    def begin(self, block_chart: Chart | None, snapshot: Snapshot) -> None:
        """Everything stands as ``snapshot`` says."""
        if block_chart is not None:
            table = compile_table(block_chart)
            self._free, self._cached = table.number("free"), table.number("cached")
        self._blocks = np.frombuffer(snapshot.tables.get("block", b""), np.uint8).copy()
        self.here = {one.id: one.configuration for one in snapshot.machines if one.machine == "request"}
        """Where each request stands. A step of one that leads to the very same tuple need not be told."""
        self._phases = {name: phase_in(states) for name, states in self.here.items()}
        self._in = Counter(self._phases.values())
        """How many are in each phase."""

    def record(
        self, t: float, machine: str, name: str | int, states: tuple[str, ...], value: Any
    ) -> Iterator[Seen]:
        """A step of a machine, or of a range of instances."""
        if machine == "request":
            if self.here.get(name) is not states:
                self.here[name] = states
                yield from self._moved(t, name, states)
        elif machine == "block" and name == ANY and value is not None:
            ids, _, after = value
            known = ids < len(self._blocks)
            self._blocks[ids[known]] = after[known]
            if not self._requests()[1]:
                yield self.counts(t)  # no launch follows that would tell

    def detail(self, t: float, detail: object) -> Iterator[Seen]:
        """What else was noted."""
        if isinstance(detail, Arrival):
            self.arrived(detail.id, detail.order)
        elif isinstance(detail, Planned):
            self.planned(detail.rows)
        elif isinstance(detail, Launched):
            self._flights[detail.number] = (t, detail.lanes, self._rows)
            yield self.counts(t)
        elif isinstance(detail, Landed):
            launched, lanes, rows = self._flights.pop(detail.number, (t - detail.seconds, 0, 0))
            yield Step(detail.number, launched, t, lanes, rows, detail.seconds)
        elif isinstance(detail, Encoded):
            yield Encode(t - detail.seconds, t, detail.request, detail.digest, detail.rows)
        elif isinstance(detail, Failed):
            yield Fault(t, detail.slot, detail.what, detail.message)
        elif isinstance(detail, Gap):
            yield Lost(t, detail.lost)
            self._phases.clear()
            self._in.clear()
            self.here.clear()
            self._flights.clear()
            yield self.counts(t)

    def arrived(self, name: str, order: int) -> None:
        """What is needed of an :class:`Arrival`."""
        self._orders[name] = order

    def planned(self, rows: int) -> None:
        """What is needed of a plan: the rows of its shared batch."""
        self._rows = rows

    def counts(self, t: float) -> Counts:
        """As they are now."""
        self._told = told = self._requests()
        return Counts(
            t,
            *told,
            int(np.count_nonzero(self._blocks == self._free)),
            int(np.count_nonzero(self._blocks == self._cached)),
        )

    def _requests(self) -> tuple[int, int, int]:
        now = self._in
        waiting, running = sum([now[phase] for phase in _WAITING]), sum([now[phase] for phase in _RUNNING])
        return waiting, running, now[_PARKED]

    def _moved(self, t: float, name: str | int, states: tuple[str, ...]) -> Iterator[Phase | Counts]:
        phase, before = phase_in(states), self._phases.get(name)
        if phase == before:
            return
        yield Phase(t, str(name), phase, before, self._orders.get(str(name)))
        if before is not None:
            self._in[before] -= 1
        if phase in ENDS:
            self._phases.pop(name, None)
            self.here.pop(name, None)
            self._orders.pop(str(name), None)
        else:
            self._phases[name] = phase
            self._in[phase] += 1
        if self._requests() != self._told:
            yield self.counts(t)


_NOTHING = Snapshot((), {})


def seen(items: Iterable[Item]) -> Iterator[Seen]:
    """What happens in a trace, in order of its end. Memory is that of the requests under way."""
    tracks = Tracks(None, _NOTHING)
    for item in items:
        if isinstance(item, EventRecord):
            yield from tracks.record(item.t, item.machine, item.id, item.configuration, item.value)
        elif isinstance(item, FileStart):
            tracks.begin(charts_of(item.header, item.path).get("block"), item.snapshot)
        else:
            yield from tracks.detail(item[1], item[2])
