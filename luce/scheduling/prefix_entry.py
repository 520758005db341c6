"""One entry of the prefix cache, and its chart as a table: an entry's state is one byte of `prefix_entry.scxml`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import attrs

from luce.charts.guards import guard
from luce.charts.interpreter import Step
from luce.charts.loader import load_chart
from luce.charts.table import ILLEGAL, ChartTable, compile_table
from luce.errors import IllegalEvent
from luce.scheduling.prefix_keys import Counts

if TYPE_CHECKING:
    from luce.scheduling.eviction_order import Place
    from luce.scheduling.prefix_tree import Node

__all__ = ["GUARDS", "Entry", "EntryChart"]

GUARDS = ("locked",)
"""Of the chart, by bit."""


@attrs.define(eq=False)
class Entry:
    """The state after exactly ``position`` tokens of some prompt. Changed by the index alone."""

    number: int
    """Never used twice; can name the stored state at the engine."""
    key: bytes
    """Digest of the prefix."""
    position: int
    counts: Counts
    """What the stored state says it holds; compared with the prompt on every hit."""
    anchor: bool
    """A later turn is sure to render the same up to here: the place before a generation prompt."""
    born: int
    """Number of the request that captured it."""
    stamp: int
    """Number of the last request that captured, hit or touched it."""
    byte: int
    """Its state in the chart's table."""
    node: Node = attrs.field(init=False, repr=False)
    snapshot: object = attrs.field(default=None, repr=False)
    """The engine's stored state, in host memory once it is demoted. Opaque here."""
    hold: object = attrs.field(default=None, repr=False)
    """What it has of the block pool; None once it is demoted. Opaque here."""
    device_bytes: int = 0
    """Bytes of device memory, blocks apart."""
    host_bytes: int = 0
    """Bytes of host memory."""
    demoted_bytes: int | None = None
    """Bytes of host memory that it takes once it is demoted; None when it cannot be."""
    promoted_bytes: int = 0
    """Bytes of device memory that it takes once it is back there."""
    locks: int = 0
    """How many read it."""
    hits: int = 0
    """Since it was captured, or since it was last found to have cooled down."""
    passed: bool = False
    """The only way on from its anchor once, until a later request went on from there in another way."""
    place: Place | None = attrs.field(default=None, init=False, repr=False)
    """Where it waits to be evicted; None when it may not be."""

    @guard
    def locked(self) -> bool:
        """Somebody reads it."""
        return self.locks > 0

    @property
    def parent(self) -> Entry | None:
        """The deepest entry that is a prefix of this one. Walks over points where prompts part."""
        node = self.node.parent
        while node is not None and node.entry is None:
            node = node.parent
        return node.entry if node is not None else None


class EntryChart:
    """Steps entries through `statecharts/prefix_entry.scxml`.

    Args:
        observer: called with every step, for the event stream.
    """

    def __init__(self, observer: Callable[[Step], None] | None = None) -> None:
        table: ChartTable = compile_table(load_chart("prefix_entry"))
        assert table.chart.guard_order == GUARDS, table.chart.guard_order
        self._name = table.chart.name
        self._configurations = table.configurations
        self._rows = table.rows
        self._observer = observer
        self.building, self.ready, self.in_use, self.hosted, self.demoting, self.promoting, self.gone = (
            table.number(state)
            for state in ("building", "ready", "in_use", "hosted", "demoting", "promoting", "gone")
        )
        self.usable = frozenset((self.ready, self.in_use, self.hosted, self.promoting))
        """States in which look-ups find an entry."""

    def step(self, entry: Entry, event: str) -> None:
        """Feed one event.

        Raises:
            IllegalEvent: nothing has changed.
        """
        bits = int(entry.locked())
        after = self._rows[event].item(bits << 8 | entry.byte)
        if after == ILLEGAL:
            raise IllegalEvent(f"{self._name} {entry.number}", self.states(entry), event)
        entry.byte = after
        if self._observer is not None:
            self._observer(Step(self._name, entry.number, event, bits, self.states(entry)))

    def states(self, entry: Entry) -> tuple[str, ...]:
        """All active states of ``entry``."""
        return self._configurations[entry.byte].states
