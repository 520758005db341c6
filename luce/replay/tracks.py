"""Steps, pictures and counts of a trace, put together from its records: what timelines draw."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import attrs
import numpy as np
from numpy.typing import NDArray

from luce.charts.table import compile_table
from luce.replay.check import charts_of
from luce.replay.phases import ENDS, phase_of
from luce.trace.events import ANY, EventRecord
from luce.trace.reader import FileStart, Item
from luce.trace.schema import Arrival, Encoded, Failed, Gap, Landed, Launched, Planned

__all__ = ["Counts", "Encode", "Fault", "Lost", "Phase", "Seen", "Step", "seen"]


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
    """As they are at a launch."""

    t: float
    waiting: int
    """Requests in the queue."""
    running: int
    parked: int
    free_blocks: int
    cached_blocks: int


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

_PARKED, _WAITING = frozenset({"parked"}), frozenset({"queued", "following"})
_RUNNING = frozenset({"encoding", "staging", "decoding"})


@attrs.define
class _State:
    phases: dict[str | int, str] = attrs.field(factory=dict)
    orders: dict[str, int] = attrs.field(factory=dict)
    flights: dict[int, tuple[float, int, int]] = attrs.field(factory=dict)
    """Steps in flight: when launched, lanes, rows."""
    rows: int = 0
    blocks: NDArray[np.uint8] = attrs.field(factory=lambda: np.zeros(0, np.uint8))
    free: int = -1
    cached: int = -1
    """State bytes."""

    def counts(self, t: float) -> Counts:
        now = list(self.phases.values())
        return Counts(
            t,
            sum(phase in _WAITING for phase in now),
            sum(phase in _RUNNING for phase in now),
            sum(phase in _PARKED for phase in now),
            int(np.count_nonzero(self.blocks == self.free)),
            int(np.count_nonzero(self.blocks == self.cached)),
        )


def seen(items: Iterable[Item]) -> Iterator[Seen]:
    """What happens, in order of its end. Memory is that of the requests under way."""
    state = _State()
    for item in items:
        if isinstance(item, EventRecord):
            if item.machine == "request":
                yield from _moved(state, item)
            elif item.machine == "block" and item.id == ANY and item.value is not None:
                ids, _, after = item.value
                known = ids < len(state.blocks)
                state.blocks[ids[known]] = after[known]
        elif isinstance(item, FileStart):
            _begin(state, item)
        else:
            yield from _noted(state, item[1], item[2])


def _begin(state: _State, start: FileStart) -> None:
    chart = charts_of(start.header, start.path).get("block")
    if chart is not None:
        table = compile_table(chart)
        state.free, state.cached = table.number("free"), table.number("cached")
    state.blocks = np.frombuffer(start.snapshot.tables.get("block", b""), np.uint8).copy()
    machines = [one for one in start.snapshot.machines if one.machine == "request"]
    state.phases = {
        one.id: phase_of(EventRecord(0, 0.0, one.machine, one.id, "", 0, one.configuration))
        for one in machines
    }


def _moved(state: _State, record: EventRecord) -> Iterator[Phase]:
    phase, before = phase_of(record), state.phases.get(record.id)
    if phase == before:
        return
    name = str(record.id)
    yield Phase(record.t, name, phase, before, state.orders.get(name))
    if phase in ENDS:
        state.phases.pop(record.id, None)
        state.orders.pop(name, None)
    else:
        state.phases[record.id] = phase


def _noted(state: _State, t: float, detail: object) -> Iterator[Seen]:
    if isinstance(detail, Arrival):
        state.orders[detail.id] = detail.order
    elif isinstance(detail, Planned):
        state.rows = detail.rows
    elif isinstance(detail, Launched):
        state.flights[detail.number] = (t, detail.lanes, state.rows)
        yield state.counts(t)
    elif isinstance(detail, Landed):
        launched, lanes, rows = state.flights.pop(detail.number, (t - detail.seconds, 0, 0))
        yield Step(detail.number, launched, t, lanes, rows, detail.seconds)
    elif isinstance(detail, Encoded):
        yield Encode(t - detail.seconds, t, detail.request, detail.digest, detail.rows)
    elif isinstance(detail, Failed):
        yield Fault(t, detail.slot, detail.what, detail.message)
    elif isinstance(detail, Gap):
        yield Lost(t, detail.lost)
        state.phases.clear()
        state.flights.clear()
