"""Which requests begin alike, and how far: found by the recorder's thread, so that a trace need not hold their tokens.

A radix tree of all sequences that were seen: an edge is a stretch of one of them. Where a new one leaves the tree is
how much it has in common with others, and whose stretch that was is one of those with which it has the most. To know
this one of every sequence, as they grow, is to know it of any two: of three sequences, the two shorter common prefixes
have one length. `luce/replay/redrive/sequences.py` makes sequences of it again.
"""

from __future__ import annotations

import attrs
import numpy as np
import numpy.typing as npt

from luce.trace.schema import Alike

__all__ = ["CommonPrefixes", "Rows"]


@attrs.frozen(eq=False)
class Rows:
    """What the sequence of a request begins or goes on with. A detail that is not recorded: :class:`CommonPrefixes`
    makes one of it that is, if there is anything to say."""

    order: int
    """Number of its arrival."""
    start: int
    """Place of the first one."""
    elements: npt.NDArray[np.int32]
    """(n,), token ids; a picture's rows have negative numbers, which are other ones in other pictures and places."""


@attrs.define(eq=False)
class _Edge:
    owner: int
    start: int
    stop: int
    """Of its owner's elements."""
    below: dict[int, _Edge] = attrs.field(factory=dict)
    """By their first element."""


@attrs.define(eq=False)
class _Sequence:
    elements: npt.NDArray[np.int32] = attrs.field(factory=lambda: np.empty(0, np.int32))
    length: int = 0

    def append(self, more: npt.NDArray[np.int32]) -> None:
        length = self.length + len(more)
        if length > len(self.elements):
            grown = np.empty(max(length, 2 * self.length), np.int32)
            grown[: self.length] = self.elements[: self.length]
            self.elements = grown
        self.elements[self.length : length] = more
        self.length = length


class CommonPrefixes:
    """Args:
    room: elements that are remembered at least. Of twice as many the half is forgotten, sequences first that have not
        grown for longest; what others had in common with them is in those others, too.
    """

    def __init__(self, room: int) -> None:
        self._room = max(room, 1)
        self._held = 0
        self._known: dict[int, _Sequence] = {}
        """By order, who grew last at the end."""
        self._tree: dict[int, _Edge] = {}

    def add(self, rows: Rows) -> Alike | None:
        """A sequence begins, or goes on.

        Returns:
            with whom it has, by its new elements, more in common than before, if it has with anybody.
        """
        known = self._known.pop(rows.order, None) or _Sequence()
        if known.length != rows.start:
            return None  # its beginning is forgotten
        known.append(rows.elements)
        self._known[rows.order] = known
        self._held += len(rows.elements)
        common, other = self._insert(rows.order, known)
        if self._held > 2 * self._room:
            self._forget()
        return Alike(rows.order, other, common) if common > rows.start else None

    def _insert(self, order: int, sequence: _Sequence) -> tuple[int, int]:
        """Where it left the tree, and of whom the last edge before that is."""
        at, owner, edge, below = 0, -1, None, self._tree
        elements, length = sequence.elements, sequence.length
        while at < length:
            following = below.get(int(elements[at]))
            if following is None:
                break
            edge, owner = following, following.owner
            alike = self._alike(elements[at:length], edge)
            at += alike
            if alike < edge.stop - edge.start:
                if at < length:
                    self._split(edge, alike)
                    below = edge.below
                break
            below = edge.below
        if at < length:
            if edge is not None and edge.owner == order and not edge.below:
                edge.stop = length
            else:
                below[int(elements[at])] = _Edge(order, at, length)
        return at, owner

    def _alike(self, elements: npt.NDArray[np.int32], edge: _Edge) -> int:
        theirs = self._known[edge.owner].elements[edge.start : edge.stop]
        count = min(len(elements), len(theirs))
        other = elements[:count] != theirs[:count]
        first = int(other.argmax()) if count else 0
        return first if count and other[first] else count

    def _split(self, edge: _Edge, at: int) -> None:
        middle = edge.start + at
        lower = _Edge(edge.owner, middle, edge.stop, edge.below)
        edge.stop = middle
        edge.below = {int(self._known[edge.owner].elements[middle]): lower}

    def _forget(self) -> None:
        for order in tuple(self._known):
            if self._held <= self._room:
                break
            self._held -= self._known.pop(order).length
        self._tree = {}
        for order, sequence in self._known.items():
            self._insert(order, sequence)
