"""The prefix cache's index: which prefixes of prompts are stored, for which prompt one can be used, what makes room.

The models keep a recurrent state, so blocks alone are no prefix: a hit needs the state after exactly P tokens, and P is
one of the positions at which it was captured (design §7). An entry is such a position of some prompt with the engine's
stored state and what it holds of the block pool, both opaque here.

Passive and owned by the step loop alone; no I/O, no clock. Requests are told apart and aged by a number that the caller
gives and that does not fall, their arrival number. The state of an entry is the chart's (`prefix_entry.scxml`); an
event that is illegal there raises :class:`luce.errors.IllegalEvent` and changes nothing. When an entry is gone, whoever
made it so gives back what it holds: its stored state and its blocks.

Cost: a look-up goes through the prompt's block boundaries and does not depend on how much is stored; everything else is
O(log n) amortised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import attrs

from luce.charts.interpreter import Step
from luce.scheduling.prefix_entry import Entry
from luce.scheduling.prefix_keys import Counts, PrefixKeys
from luce.scheduling.prefix_store import EntryStore

__all__ = ["Eviction", "PrefixIndex", "PrefixStats"]


@attrs.define
class PrefixStats:
    """Counts since the start."""

    hits: int = 0
    misses: int = 0
    hit_tokens: int = 0
    """Tokens that did not have to be computed."""
    captures: int = 0
    failed_captures: int = 0
    evictions: int = 0
    """Entries dropped to make room."""
    demotions: int = 0
    promotions: int = 0
    failed_copies: int = 0
    broken: int = 0
    """Entries dropped because they could not be restored, or did not hold what they should: see ``mismatches``."""
    mismatches: int = 0


@attrs.frozen
class Eviction:
    """An entry makes room."""

    entry: Entry
    demote: bool
    """Copy it to host memory, then say ``demoted``; else it is gone: give back what it holds."""


class PrefixIndex:
    """All entries of one model.

    Args:
        block_size: tokens in a KV block.
        observer: called with every step of an entry's chart, for the event stream.
    """

    def __init__(self, block_size: int, *, observer: Callable[[Step], None] | None = None) -> None:
        self.stats = PrefixStats()
        self._store = EntryStore(block_size, observer)
        self._chart = self._store.chart

    def __len__(self) -> int:
        """Entries, those being captured included."""
        return len(self._store)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._store)

    def configurations(self) -> Iterator[tuple[int, tuple[str, ...]]]:
        """Number and active states of every entry that is not gone."""
        chart = self._chart
        return ((entry.number, chart.states(entry)) for entry in self._store if entry.byte != chart.gone)

    @property
    def device_bytes(self) -> int:
        """Of all entries, those included that are on their way to host memory."""
        return self._store.device_bytes

    @property
    def leaving_bytes(self) -> int:
        """How many of ``device_bytes`` come free without anybody's doing: copies to host memory are under way."""
        return self._store.leaving_bytes

    @property
    def host_bytes(self) -> int:
        """Of all entries, those included that are on their way there."""
        return self._store.host_bytes

    def state(self, entry: Entry) -> str:
        """The innermost state of ``entry`` in the chart."""
        return self._chart.states(entry)[-1]

    # -- hits ---------------------------------------------------------------------------------------------------------

    def lookup(self, keys: PrefixKeys, limit: int | None = None) -> Entry | None:
        """The deepest entry that ``keys`` begins with and that leaves a token to compute. Changes nothing.

        Args:
            limit: the hit may not be longer; a cache of blocks that lost some of them says so here.
        """
        last = len(keys) - 1 if limit is None else min(limit, len(keys) - 1)
        return self._store.find(keys, last)

    def hit(self, entry: Entry, keys: PrefixKeys, now: int) -> bool:
        """Request number ``now`` uses ``entry``, which a look-up has found, and locks it until :meth:`unlock`.

        If :meth:`state` says ``promoting`` afterwards, it is in host memory only: copy it back and say ``promoted``.
        Its bytes on the device count from here on, so :meth:`evict_until` has made room for it before.

        Returns:
            False: the entry does not hold what the prompt does. Nothing is locked, nothing will find it any more, and
            it is gone unless others read it: give back what it holds if so, then look up again.
        """
        assert keys.digest(entry.position) == entry.key, f"entry {entry.number} is no prefix of this prompt"
        if entry.counts != keys.counts(entry.position):
            self.broken(entry)
            self.stats.mismatches += 1
            return False
        self._store.step(entry, "lock", locks=1)
        if entry.byte == self._chart.promoting:
            self._store.count(entry, entry.promoted_bytes, None)
        entry.hits += 1
        entry.passed = False
        self.stats.hits += 1
        self.stats.hit_tokens += entry.position
        self.touch(entry, now)
        return True

    def miss(self, now: int) -> None:
        """Request number ``now`` starts from nothing."""
        self._store.tick(now)
        self.stats.misses += 1

    def unlock(self, entry: Entry) -> bool:
        """A reader is done. True: the entry was broken and is gone now; give back what it holds."""
        assert entry.locks > 0, f"entry {entry.number} is unlocked more often than it was locked"
        return self._store.step(entry, "unlock", locks=-1)

    def broken(self, entry: Entry) -> bool:
        """``entry`` cannot be restored or is not what it should be. Its readers unlock it all the same.

        Returns:
            True: it is gone; give back what it holds. False: the last of its readers will be told so.
        """
        gone = self._store.step(entry, "broken")
        self.stats.broken += 1
        return gone

    def touch(self, entry: Entry, now: int) -> None:
        """Request number ``now`` has to do with ``entry``."""
        entry.stamp = self._store.tick(now)
        self._store.settle(entry)

    # -- captures -----------------------------------------------------------------------------------------------------

    def begin(
        self,
        keys: PrefixKeys,
        position: int,
        now: int,
        *,
        anchor: bool = False,
        device_bytes: int = 0,
        host_bytes: int = 0,
    ) -> Entry | None:
        """Request number ``now`` will capture its state after ``position`` tokens: 1 to T, not inside a picture.

        Args:
            anchor: a later turn is sure to render the same up to here: the place before a generation prompt.
            device_bytes, host_bytes: what it will take; counted from now on.

        Returns:
            None: it is stored or being captured already.
        """
        assert 0 < position <= len(keys) and not keys.splits_image(position), position
        entry = self._store.add(keys, position, now, anchor)
        if entry is not None:
            self._store.count(entry, device_bytes, host_bytes)
        return entry

    def filled(
        self,
        entry: Entry,
        snapshot: object,
        hold: object = None,
        *,
        device_bytes: int | None = None,
        host_bytes: int | None = None,
        demoted_bytes: int | None = None,
        counts: Counts | None = None,
    ) -> None:
        """The capture has ended well.

        Args:
            snapshot: the engine's stored state.
            hold: of the blocks below ``entry.position``; None when they are found by their digests.
            device_bytes, host_bytes: what it takes, if not what :meth:`begin` was told.
            demoted_bytes: of host memory once it is demoted; None when it cannot be.
            counts: what the stored state says it holds, when it says so.
        """
        self._store.step(entry, "filled")
        entry.snapshot, entry.hold, entry.demoted_bytes = snapshot, hold, demoted_bytes
        if counts is not None:
            entry.counts = counts
        self._store.count(entry, device_bytes, host_bytes)
        self.stats.captures += 1

    def failed(self, entry: Entry) -> None:
        """The capture has failed, or was not even tried for want of room. The entry is gone."""
        self._store.step(entry, "failed")
        self.stats.failed_captures += 1

    # -- room ---------------------------------------------------------------------------------------------------------

    def evict_until(
        self,
        *,
        device_bytes: int | None = None,
        host_bytes: int | None = None,
        blocks: int = 0,
        freed: Callable[[Eviction], int] | None = None,
        demote: bool = False,
        newcomer: Entry | None = None,
    ) -> list[Eviction]:
        """Entries make room, in the order of :mod:`luce.scheduling.eviction_order`, as far as needed and possible.

        Args:
            device_bytes: of all entries, at most so many shall be left, what is leaving already apart.
            host_bytes: of all entries, at most so many shall be left.
            blocks: so many KV blocks shall come free.
            freed: called with each eviction made for blocks; says how many come free by it. The index does not know:
                other entries and slots may hold the same ones.
            demote: rather than being dropped, entries may go to host memory, where there is room for them within
                ``host_bytes`` beside everything of more worth.
            newcomer: make room for this entry, which is to be captured or promoted, and do not give up what
                outlasts it. If there is too little room afterwards, do not capture it: ``failed``.

        Returns:
            What was evicted, in order. Those not demoted are gone: give back what they hold.
        """
        made: list[Eviction] = []
        if newcomer is not None and (
            newcomer.device_bytes > _or_more(device_bytes) or newcomer.host_bytes > _or_more(host_bytes)
        ):
            return made  # nothing that goes would help
        resident, hosted = self._store.resident, self._store.hosted
        to_host = host_bytes if demote else None
        while device_bytes is not None and self.device_bytes - self.leaving_bytes > device_bytes:
            victim = self._store.first(resident, newcomer)
            if victim is None:
                break
            made += self._evict(victim, newcomer, to_host)
        while blocks > 0:
            victim = self._store.first(resident, newcomer)
            if victim is None:
                break
            made += self._evict(victim, newcomer, to_host)
            assert freed is not None, "who wants blocks says how many came free"
            blocks -= freed(made[-1])
        while host_bytes is not None and self.host_bytes > host_bytes:
            victim = self._store.first(hosted, newcomer) or self._store.first(resident, newcomer)
            if victim is None or (victim.device_bytes and not victim.host_bytes):
                break
            made += self._evict(victim, newcomer, None)
        return made

    def evict(self, entry: Entry) -> bool:
        """This very entry makes room. True: it is gone; give back what it holds. False: somebody needs it."""
        if entry.place is None:
            return False
        self._drop(entry)
        return True

    def demoted(self, entry: Entry, snapshot: object, host_bytes: int | None = None) -> None:
        """The copy to host memory is ``snapshot``. What the entry held on the device is to be given back before."""
        self._store.step(entry, "demoted")
        entry.snapshot, entry.hold = snapshot, None
        entry.promoted_bytes = entry.device_bytes
        self._store.leaving_bytes -= entry.device_bytes
        self._store.count(entry, 0, host_bytes)

    def promoted(self, entry: Entry, snapshot: object, hold: object = None, host_bytes: int = 0) -> None:
        """The copy back to the device is ``snapshot``. What it held in host memory is to be given back before."""
        self._store.step(entry, "promoted")
        entry.snapshot, entry.hold = snapshot, hold
        self._store.count(entry, None, host_bytes)
        self.stats.promotions += 1

    def copy_failed(self, entry: Entry, host_bytes: int = 0) -> bool:
        """A copy to or from host memory has failed. True: the entry is gone; give back what it holds.

        One that was to be demoted stays on the device and takes ``host_bytes``; one that was to be promoted is broken.
        """
        demoting = entry.byte == self._chart.demoting
        gone = self._store.step(entry, "copy.failed")
        if demoting:
            self._store.leaving_bytes -= entry.device_bytes
            self._store.count(entry, None, host_bytes)
        self.stats.failed_copies += 1
        return gone

    # -- checks -------------------------------------------------------------------------------------------------------

    def check_integrity(self) -> None:
        """Recounts everything. Linear in what is stored: for idle moments and tests.

        Raises:
            AssertionError: says what does not add up.
        """
        self._store.check_integrity()

    # -- inside -------------------------------------------------------------------------------------------------------

    def _evict(self, victim: Entry, newcomer: Entry | None, host_budget: int | None) -> list[Eviction]:
        """``victim`` goes to host memory if it may and can, at the price of what is there and worth less."""
        made: list[Eviction] = []
        need = victim.demoted_bytes
        if host_budget is not None and need is not None and need <= host_budget:
            while self.host_bytes - victim.host_bytes + need > host_budget:
                other = self._store.first(self._store.hosted, victim, newcomer)
                if other is None:
                    break
                self._drop(other)
                made.append(Eviction(other, demote=False))
            else:
                self._store.step(victim, "demote")
                self._store.count(victim, None, need)
                self._store.leaving_bytes += victim.device_bytes
                self.stats.demotions += 1
                return [*made, Eviction(victim, demote=True)]
        self._drop(victim)
        return [*made, Eviction(victim, demote=False)]

    def _drop(self, entry: Entry) -> None:
        self._store.step(entry, "evict")
        self.stats.evictions += 1


def _or_more(budget: int | None) -> float:
    return float("inf") if budget is None else budget
