"""In which order prefix entries make room (design §7): what is least likely to be hit again goes first.

1. The deepest entry of an abandoned branch: the end of a chat that nobody came back to for long.
2. What a chat has outgrown: one entry, and no other, continues it.
3. The end of an answer while the place before it, where the next turn is sure to go on, is stored as well.
4. Ends: where a chat will go on.
5. What is shared: those that were hit often of late, and prefixes at which stored prompts part.

Within each the least recently used goes first. So however few entries there are, a growing chat gives up what lies
behind it and keeps its end, and a newcomer of lesser worth is not kept at the price of another chat's end.

"Long" is counted in requests: four times as many as there are entries. There is no clock.
"""

from __future__ import annotations

import enum
import heapq
from collections.abc import Iterable
from typing import NamedTuple

from luce.scheduling.prefix_entry import Entry

__all__ = ["EvictionOrder", "Place", "Rank", "give_up_place", "outlasts", "rank"]

ABANDONED_AFTER = 4
"""Requests per entry without a hit."""
COOL_AFTER = 2 * ABANDONED_AFTER
"""Requests per entry without a hit, after which many hits do not count any more."""
MANY_HITS = 3


class Rank(enum.IntEnum):
    """What an entry is to those around it, abandoned or not. In the order in which they go."""

    OUTGROWN = 0
    PAIRED = 1
    END = 2
    HOT = 3
    SHARED = 4


def rank(entry: Entry) -> Rank:
    """Depends on the entry, on its parent's and its children's numbers of children, and on whether it is hit often."""
    shape = _shape(entry)
    return Rank.HOT if entry.hits >= MANY_HITS and shape is not Rank.SHARED else shape


def outlasts(victim: Entry, newcomer: Entry, now: int, population: int) -> bool:
    """Is ``victim`` worth more than ``newcomer``, however old it is? Ends and shared entries are worth the same."""
    if not victim.node.children and victim.stamp < now - ABANDONED_AFTER * population:
        return False
    return min(rank(victim), Rank.END) > rank(newcomer)


def _shape(entry: Entry) -> Rank:
    node = entry.node
    if len(node.children) > 1:
        return Rank.SHARED
    child = node.only_child
    if child is not None:
        if child.entry is None:
            return Rank.SHARED
        paired = entry.anchor and not child.children and not child.entry.anchor
        return Rank.END if paired else Rank.OUTGROWN
    if entry.passed:
        return Rank.OUTGROWN
    parent = node.parent
    if parent is not None and parent.entry is not None and len(parent.children) == 1:
        return Rank.PAIRED if parent.entry.anchor and not entry.anchor else Rank.END
    return Rank.END


class _Queue:
    """A heap in which places that were given up stay until they come to the top, or are too many."""

    def __init__(self) -> None:
        self._heap: list[Place] = []
        self._live = 0

    def put(self, place: Place) -> None:
        heapq.heappush(self._heap, place)
        self._live += 1

    def leave(self) -> None:
        """Some place was given up: it is not its entry's any more."""
        self._live -= 1
        if len(self._heap) > 2 * self._live + 64:
            self._heap = [place for place in self._heap if place.entry.place is place]
            heapq.heapify(self._heap)

    def head(self) -> Entry | None:
        while self._heap:
            place = self._heap[0]
            if place.entry.place is place:
                return place.entry
            heapq.heappop(self._heap)
        return None


class Place(NamedTuple):
    """An entry's place in a queue. The least that is still its entry's own place is the next to go."""

    stamp: int
    depth: int
    number: int
    entry: Entry
    queue: _Queue


def give_up_place(entry: Entry) -> None:
    """``entry`` may not be evicted."""
    place = entry.place
    if place is not None:
        entry.place = None
        place.queue.leave()


class EvictionOrder:
    """The entries that may be evicted, in order. Every call is O(log n) amortised."""

    def __init__(self) -> None:
        self._queues = {rank: _Queue() for rank in Rank}

    def put(self, entry: Entry) -> None:
        """``entry`` may be evicted. Called again when its stamp or rank may have changed."""
        now = rank(entry)
        # A chat outgrows its entries from the start on; a branch is given up from its end.
        depth = entry.position if now is Rank.OUTGROWN else -entry.position
        place = Place(entry.stamp, depth, entry.number, entry, self._queues[now])
        if entry.place is not None:
            if entry.place == place:
                return
            give_up_place(entry)
        entry.place = place
        place.queue.put(place)

    def first(self, now: int, population: int) -> Entry | None:
        """The next to make room.

        Args:
            now: number of the request that is served.
            population: entries that are stored at all.
        """
        self._cool(now - COOL_AFTER * population)
        abandoned = self._abandoned(now - ABANDONED_AFTER * population)
        if abandoned is not None:
            return abandoned
        for candidates in ((Rank.OUTGROWN,), (Rank.PAIRED,), (Rank.END,), (Rank.HOT, Rank.SHARED)):
            entry = _oldest(self._queues[rank].head() for rank in candidates)
            if entry is not None:
                return entry
        return None

    def _abandoned(self, before: int) -> Entry | None:
        oldest = _oldest(map(self._leaf, (Rank.PAIRED, Rank.END)))
        return oldest if oldest is not None and oldest.stamp < before else None

    def _leaf(self, rank: Rank) -> Entry | None:
        """The entry at the head of a queue; of a pair of an anchor and an end that both may go, the end."""
        entry = self._queues[rank].head()
        child = entry.node.only_child if entry is not None else None
        if child is None or child.entry is None:
            return entry
        place = child.entry.place
        if place is None:
            return None
        return child.entry if place.queue is self._queues[Rank.PAIRED] else entry

    def _cool(self, before: int) -> None:
        while (entry := self._queues[Rank.HOT].head()) is not None and entry.stamp < before:
            entry.hits = 0
            self.put(entry)


def _oldest(entries: Iterable[Entry | None]) -> Entry | None:
    """Least recently used; of one request the deepest."""
    found = [entry for entry in entries if entry is not None]
    return min(found, key=lambda entry: (entry.stamp, -entry.position, entry.number), default=None)
