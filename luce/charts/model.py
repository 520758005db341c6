"""The chart as data: what a loaded statechart file says, with names resolved and order kept.

A `Chart` never changes after loading. States are numbered in document order, which SCXML uses to settle
conflicts and to order entry and exit (W3C SCXML 1.0, section 3.13 and Appendix D), so everything here refers
to a state by its number and only the outside sees names.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from luce.charts.interpreter import Configuration

__all__ = ["Action", "Chart", "Kind", "Raise", "Send", "State", "Transition"]


class Kind(enum.Enum):
    """What a state is. The root stands for the `<scxml>` element itself and is never shown."""

    ROOT = "scxml"
    ATOMIC = "atomic"
    COMPOUND = "state"
    PARALLEL = "parallel"
    FINAL = "final"
    HISTORY = "history"


@attrs.frozen
class Send:
    """A message to another actor, or to the timer.

    The target is written without its leading `#_`. A send to `timer` with a delay arms a timer that delivers
    `event` to the machine that sent it; one without a delay stops that timer. No other send has a delay.
    """

    target: str
    event: str
    delay: float | None = None
    """Seconds."""


@attrs.frozen
class Raise:
    """An event that the machine gives itself, handled before `feed` returns."""

    event: str


Action = Send | Raise


@attrs.frozen(eq=False)
class Transition:
    """One `<transition>`. Without targets it changes no state: the event is legal and handled in place."""

    source: int
    events: tuple[str, ...]
    """Descriptors, see `checks.matches`. Empty: eventless."""
    guard: str | None
    inside: int | None
    """The state of `In('id')`, when the condition is of that form."""
    targets: tuple[int, ...]
    internal: bool
    actions: tuple[Action, ...]
    line: int
    comment: str = ""


@attrs.frozen(eq=False)
class State:
    """One state, with its children and transitions in document order."""

    index: int
    id: str
    kind: Kind
    parent: int
    """Number of the parent; the root is its own parent."""
    ancestors: tuple[int, ...]
    """From the parent up to the root."""
    children: tuple[int, ...]
    """Child states without histories."""
    histories: tuple[int, ...]
    deep: bool
    """Of a history: remembers atomic descendants, not children."""
    initial: Transition | None
    """Of a compound state or the root: how it is entered. Of a history: where it leads the first time."""
    transitions: tuple[Transition, ...]
    onentry: tuple[Action, ...]
    onexit: tuple[Action, ...]
    line: int


@attrs.frozen(eq=False)
class Chart:
    """A loaded statechart. Two machines of one chart share what the interpreter has worked out so far."""

    name: str
    sha256: str
    """Of the file's bytes: traces carry it."""
    nodes: tuple[State, ...] = attrs.field(repr=False)
    """All states by number; `nodes[0]` is the root."""
    states: tuple[str, ...] = attrs.field(repr=False)
    """Names of all states but the root and the histories, in document order."""
    events: frozenset[str] = attrs.field(repr=False)
    """Names that may be fed. Events that the chart gives itself (`raise`, `done.state.*`) are not among them.
    """
    guards: frozenset[str] = attrs.field(repr=False)
    guard_order: tuple[str, ...] = attrs.field(repr=False)
    """Guard names in document order: the place of a guard here is its bit in a `Step`."""
    targets: frozenset[str] = attrs.field(repr=False)
    """Actors that the chart sends to, without `timer`."""
    wildcards: bool = attrs.field(repr=False, default=False)
    """True only for conformance cases: events are matched by prefix and `*`, and any name may be fed."""
    configurations: dict[object, Configuration] = attrs.field(repr=False, factory=dict, init=False)
    """The interpreter's memo: every configuration met so far."""
    guard_classes: set[type] = attrs.field(repr=False, factory=set, init=False)
    """Guard classes found to fit this chart."""

    def node(self, state: str) -> State:
        """The state called `state`. Raises KeyError."""
        for node in self.nodes[1:]:
            if node.id == state:
                return node
        raise KeyError(state)
