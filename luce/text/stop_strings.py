"""Stop strings in a stream of text pieces.

The match that *ends* first wins, whatever the pieces: text is scanned character by character, so streamed and
whole answers are cut at the same place. Of stops that end at the same character the longest wins. Scanning is
an Aho-Corasick automaton: constant work per character, and its depth is exactly how much must be held back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import attrs

__all__ = ["StopMatch", "StopMatcher"]


@attrs.frozen
class StopMatch:
    """A stop string was completed."""

    text: str
    """The stop string."""
    piece: int
    """Index of the :meth:`StopMatcher.feed` call that completed it; with one call per token, the token."""


@attrs.define(eq=False, repr=False)
class _Node:
    depth: int
    next: dict[str, _Node] = attrs.field(factory=dict)
    fail: _Node | None = None
    stop: str | None = None
    """Longest stop string that ends here."""


class StopMatcher:
    """One answer's stop strings. Belongs to its request; not shared.

    Args:
        stops: stop strings, none empty.
        include: leave the stop string in the text (``include_stop_str_in_output``).
    """

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        if not all(stops):
            raise ValueError("empty stop string")
        self._root = _automaton(stops)
        self._node = self._root
        self._held = ""
        self._include = include
        self._pieces = 0
        self.match: StopMatch | None = None
        """Set by the feed that completes a stop string; text fed later is dropped."""

    @property
    def held(self) -> str:
        """Text held back, because a stop string may begin in it."""
        return self._held

    def feed(self, piece: str, *, armed: bool = True) -> str:
        """Text that may be shown now.

        ``armed=False`` passes the piece through without looking for stops in it (text that stop strings do not
        apply to, such as reasoning); what was held back before it comes out first, and no match spans it.
        """
        index = self._pieces
        self._pieces += 1
        if self.match is not None:
            return ""
        if not armed:
            return self.flush() + piece
        if not self._root.next:
            return piece
        text = self._held + piece
        start = len(self._held)
        node = self._node
        for place in range(start, len(text)):
            node = _step(self._root, node, text[place])
            if node.stop is not None:
                self.match = StopMatch(node.stop, index)
                self._held, self._node = "", self._root
                end = place + 1
                return text[:end] if self._include else text[: end - len(node.stop)]
        self._node = node
        shown = len(text) - node.depth
        self._held = text[shown:]
        return text[:shown]

    def flush(self) -> str:
        """The text held back, once no more will come."""
        held, self._held, self._node = self._held, "", self._root
        return held


def _step(root: _Node, node: _Node, character: str) -> _Node:
    found = node.next.get(character)
    while found is None and node.fail is not None:
        node = node.fail
        found = node.next.get(character)
    return root if found is None else found


def _automaton(stops: Sequence[str]) -> _Node:
    root = _Node(0)
    for stop in stops:
        node = root
        for character in stop:
            node = node.next.setdefault(character, _Node(node.depth + 1))
        node.stop = stop
    waiting = deque([root])
    while waiting:
        node = waiting.popleft()
        for character, child in node.next.items():
            child.fail = root if node.fail is None else _step(root, node.fail, character)
            if child.stop is None:
                child.stop = child.fail.stop
            waiting.append(child)
    return root
