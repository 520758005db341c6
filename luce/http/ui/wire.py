"""What the page is told, as JSON in server-sent events: one ``hello``, then ``news``; a saved trace is told the same.

Times are seconds on the clock of the records.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from typing import Any, get_args

import attrs
import msgspec
from msgspec import Struct

from luce.charts.draw import to_dot
from luce.charts.model import Chart, Kind
from luce.replay.tracks import Encode, Seen
from luce.trace import schema
from luce.trace.schema import LiveMachine

__all__ = [
    "ChartInfo",
    "End",
    "Hello",
    "Illegal",
    "News",
    "Strip",
    "chart_infos",
    "encode",
    "forbidden",
    "strip_of",
]

Strip = tuple[Any, ...]
"""A name of :data:`luce.replay.tracks.Seen` in lower case, then its fields in their order."""

FORBIDDEN = "the chart has no transition for this event there"

StepFields = tuple[Any, ...]
"""Of :class:`luce.trace.events.EventRecord` without number and value: time, machine, id, event, guard bits, states."""


class ChartInfo(Struct, frozen=True):
    name: str
    dot: str
    """Graphviz' text, with a state's name as its id."""
    states: tuple[str, ...]
    guards: tuple[str, ...]
    """In the order of their bits."""
    finals: tuple[str, ...] = ()
    """States that a machine does not leave any more."""


class Hello(Struct, frozen=True, kw_only=True, tag_field="kind", tag="hello"):
    live: bool
    """False: a saved trace."""
    now: float
    wall: float
    """Unix seconds at ``now``."""
    model: str
    slots: int
    blocks: int
    charts: tuple[ChartInfo, ...]
    machines: tuple[LiveMachine, ...]
    """Under way now."""
    strips: list[Strip] = []
    """How much there is of everything now."""
    options: dict[str, Any] = {}


class Illegal(Struct, frozen=True):
    """An event that the chart forbids where its machine stood, or a record that does not follow from those before."""

    t: float
    machine: str
    id: str | int
    event: str
    states: tuple[str, ...]
    why: str


def forbidden(t: float, fault: schema.Illegal) -> Illegal:
    machine, _, name = fault.machine.partition(" ")
    return Illegal(t, machine, name, fault.event, fault.configuration, FORBIDDEN)


class News(Struct, frozen=True, kw_only=True, tag_field="kind", tag="news"):
    now: float
    first: int
    """Number of the first of ``steps``."""
    lost: int = 0
    """Records that came too fast for this page."""
    thinned: int = 0
    """Steps that are left out because there were too many: of those that led nowhere else."""
    steps: list[StepFields] = []
    strips: list[Strip] = []
    illegal: tuple[Illegal, ...] = ()
    board: Any = None
    """Slots and requests as at ``GET /slots``, a few times a second."""


class End(Struct, frozen=True, tag_field="kind", tag="end"):
    """Of a saved trace."""

    records: int
    more: bool
    """It goes on behind what was shown."""
    warnings: tuple[str, ...] = ()


def chart_infos(charts: Iterable[Chart]) -> tuple[ChartInfo, ...]:
    return tuple(
        ChartInfo(one.name, to_dot(one, ids=True), one.states, one.guard_order, _finals(one))
        for one in charts
    )


def _finals(chart: Chart) -> tuple[str, ...]:
    """Those that end the machine, not only a part of it."""
    ends = (chart.nodes[child] for child in chart.nodes[0].children)
    return tuple(node.id for node in ends if node.kind is Kind.FINAL)


def strip_of(one: Seen) -> Strip:
    if isinstance(one, Encode):
        one = attrs.evolve(one, digest=one.digest.hex())  # type: ignore[arg-type]
    name, fields = _FIELDS[type(one)]
    return (name, *fields(one))


_FIELDS = {
    kind: (kind.__name__.lower(), attrgetter(*(field.name for field in attrs.fields(kind))))
    for kind in get_args(Seen)
}
"""Name and fields of each kind; there are hundreds of strips a second."""

encode = msgspec.json.Encoder().encode
