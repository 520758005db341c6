"""The entries of the prefix cache with all that must stay in step when one of them changes: tree, orders, bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from luce.charts.interpreter import Step
from luce.scheduling.eviction_order import EvictionOrder, give_up_place, outlasts
from luce.scheduling.prefix_entry import Entry, EntryChart
from luce.scheduling.prefix_keys import PrefixKeys
from luce.scheduling.prefix_tree import Node, PrefixTree

__all__ = ["EntryStore"]


class EntryStore:
    """For :class:`luce.scheduling.prefix_index.PrefixIndex` alone; it says what the arguments mean."""

    def __init__(self, block_size: int, observer: Callable[[Step], None] | None) -> None:
        self.chart = EntryChart(observer)
        self.tree = PrefixTree(block_size)
        self.resident = EvictionOrder()
        self.hosted = EvictionOrder()
        self.device_bytes = self.host_bytes = self.leaving_bytes = 0
        self.now = 0
        self._entries: dict[int, Entry] = {}
        self._next = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())

    def tick(self, now: int) -> int:
        self.now = max(self.now, now)
        return self.now

    # -- entries ------------------------------------------------------------------------------------------------------

    def find(self, keys: PrefixKeys, limit: int) -> Entry | None:
        """The deepest usable entry that is a prefix of ``keys``."""
        node = self.tree.deepest(keys, limit, self._usable)
        return None if node is None else node.entry

    def add(self, keys: PrefixKeys, position: int, now: int, anchor: bool) -> Entry | None:
        """A new entry that is being captured; None when there is one."""
        stamp, building = self.tick(now), self.chart.building
        key = keys.digest(position)
        node = self.tree.get(key)
        if node is not None and node.entry is not None:
            return None
        entry = Entry(self._next, key, position, keys.counts(position), anchor, stamp, stamp, building)
        self._next += 1
        self._entries[entry.number] = entry
        self._rearrange(self.tree.insert(entry, keys))
        other = _passed_by(entry)
        if other is not None:
            other.passed = True
            self.settle(other)
        return entry

    def step(self, entry: Entry, event: str, locks: int = 0) -> bool:
        """Feed one event to ``entry``, which so many more readers lock. Is it gone?

        Raises:
            IllegalEvent: nothing has changed.
        """
        entry.locks += locks
        try:
            self.chart.step(entry, event)
        except Exception:
            entry.locks -= locks
            raise
        self.settle(entry)
        if entry.byte != self.chart.gone:
            return False
        del self._entries[entry.number]
        self.count(entry, 0, 0)
        self._rearrange(self.tree.remove(entry))
        return True

    def count(self, entry: Entry, device_bytes: int | None, host_bytes: int | None) -> None:
        """``entry`` takes so many bytes from now on; None: as many as before."""
        if device_bytes is not None:
            self.device_bytes += device_bytes - entry.device_bytes
            entry.device_bytes = device_bytes
        if host_bytes is not None:
            self.host_bytes += host_bytes - entry.host_bytes
            entry.host_bytes = host_bytes

    # -- order --------------------------------------------------------------------------------------------------------

    def first(
        self, order: EvictionOrder, newcomer: Entry | None, spared: Entry | None = None
    ) -> Entry | None:
        """The next of ``order`` to go, unless it is ``spared`` or outlasts ``newcomer``."""
        victim = order.first(self.now, len(self))
        if victim is None or victim is newcomer or victim is spared:
            return None
        if newcomer is not None and outlasts(victim, newcomer, self.now, len(self)):
            return None
        return victim

    def settle(self, entry: Entry) -> None:
        """Put ``entry`` where its state, stamp and rank say that it waits to be evicted."""
        if entry.byte == self.chart.ready:
            self.resident.put(entry)
        elif entry.byte == self.chart.hosted:
            self.hosted.put(entry)
        else:
            give_up_place(entry)

    def check_integrity(self) -> None:
        """Recounts everything; AssertionError says what does not add up."""
        self.tree.check_integrity()
        chart = self.chart
        for entry in self:
            node = self.tree.get(entry.key)
            assert node is not None and node.entry is entry, f"entry {entry.number} is not in the tree"
            assert entry.byte != chart.gone, f"entry {entry.number} is gone and stored"
            waits, place = entry.byte in (chart.ready, chart.hosted), entry.place
            assert waits == (place is not None), f"entry {entry.number}: {chart.states(entry)}, {place}"
            assert not (waits and entry.locks), f"entry {entry.number} may go and is locked"
            self.settle(entry)
            assert entry.place is place, f"entry {entry.number} waited at the wrong place: {place}"
        assert self.tree.entries == len(self), "the tree has entries that are gone"
        assert self.device_bytes == sum(entry.device_bytes for entry in self), "device bytes"
        assert self.host_bytes == sum(entry.host_bytes for entry in self), "host bytes"
        leaving = sum(entry.device_bytes for entry in self if entry.byte == chart.demoting)
        assert self.leaving_bytes == leaving, "leaving bytes"

    def _usable(self, node: Node) -> bool:
        return node.entry is not None and node.entry.byte in self.chart.usable

    def _rearrange(self, changed: Iterable[Node]) -> None:
        near = {id(one): one for node in changed for one in node.neighbours()}
        for node in near.values():
            if node.entry is not None:
                self.settle(node.entry)


def _passed_by(entry: Entry) -> Entry | None:
    """Where one answer's end was the only way on from an anchor, and a later request goes another one, turns do not
    render the same beyond the anchor: nobody is likely to come back to that end."""
    node, above = entry.node, entry.parent
    if above is None or not above.anchor or node.children:
        return None
    fork = node.parent
    assert fork is not None
    if fork is not above.node and (fork.parent is not above.node or len(above.node.children) > 1):
        return None
    if len(fork.children) != 2:
        return None
    (other,) = (child.entry for child in fork.children.values() if child is not node)
    if other is None or other.anchor or other.node.children or other.born >= entry.born:
        return None
    return other
