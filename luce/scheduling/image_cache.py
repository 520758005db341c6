"""Encoded pictures: who waits for which, who may still need its rows, and which rows make room.

Pictures are told apart by their full digest (:attr:`luce.engines.seam.PatchImage.digest`) alone, never by a name that a
client gave them. Each is encoded once, however many requests ask for it while it waits or is being encoded; it is
nobody's job in particular, so whoever leaves takes nothing from the others. A picture that nobody wants any more is not
begun; one that has been begun is finished and kept, since the work is done.

Passive bookkeeping, owned by one actor; rows are opaque. Every call is O(1), but for what it evicts.
"""

from __future__ import annotations

import enum
from collections import OrderedDict
from collections.abc import Hashable

import attrs

__all__ = ["Asked", "Encoded", "ImageCache", "ImageStats"]


class Asked(enum.Enum):
    """What a request finds."""

    READY = "ready"
    """Its rows are there."""
    JOINED = "joined"
    """Another request has asked for it: the rows will come for both."""
    QUEUED = "queued"
    """It is the first to ask: :meth:`ImageCache.next_encode` will name it."""


@attrs.define
class ImageStats:
    """Counts since the start, of requests that ask for a picture."""

    hits: int = 0
    joins: int = 0
    queued: int = 0
    encoded: int = 0
    failed: int = 0
    evicted: int = 0


@attrs.frozen
class Encoded:
    """A picture has been encoded."""

    waiting: tuple[Hashable, ...]
    """Requests that get its rows now, in the order in which they asked."""
    evicted: tuple[object, ...]
    """Rows that are given up; its own are among them when nobody wants them and they do not fit."""


@attrs.define(eq=False)
class _Picture:
    digest: bytes
    holders: dict[Hashable, None] = attrs.field(factory=dict)
    """Requests that wait for it or may still need its rows."""
    rows: object = None
    nbytes: int = 0
    ready: bool = False


class ImageCache:
    """Args:
    budget: bytes of rows; what requests still need may take more.
    """

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.stats = ImageStats()
        self.bytes = 0
        """Of all rows."""
        self._pictures: dict[bytes, _Picture] = {}
        self._queue: OrderedDict[bytes, None] = OrderedDict()
        self._encoding: set[bytes] = set()
        self._idle: OrderedDict[bytes, _Picture] = OrderedDict()
        """Ready and needed by nobody, the next to go first."""
        self._held: dict[Hashable, dict[bytes, None]] = {}
        """By request: what it waits for or may still need."""

    # -- requests -----------------------------------------------------------------------------------------------------

    @property
    def requests(self) -> tuple[Hashable, ...]:
        """All that hold a picture."""
        return tuple(self._held)

    def holds(self, digest: bytes, request: Hashable) -> bool:
        """Has ``request`` asked for the picture, and neither released it nor been told that it failed?"""
        return digest in self._held.get(request, ())

    def ask(self, digest: bytes, request: Hashable) -> Asked:
        """``request`` needs the picture and holds it until :meth:`release`; asking again for what it holds is no more.

        A request whose prompt shows a picture twice asks once and releases it once.
        """
        picture = self._pictures.get(digest)
        if picture is None:
            picture = self._pictures[digest] = _Picture(digest)
            self._queue[digest] = None
            found = Asked.QUEUED
            self.stats.queued += 1
        elif picture.ready:
            self._idle.pop(digest, None)
            found = Asked.READY
            self.stats.hits += 1
        else:
            found = Asked.JOINED
            self.stats.joins += 1
        picture.holders[request] = None
        self._held.setdefault(request, {})[digest] = None
        return found

    def rows(self, digest: bytes) -> object:
        """Rows of a picture that is ready. Raises KeyError for any other."""
        picture = self._pictures[digest]
        if not picture.ready:
            raise KeyError(digest)
        return picture.rows

    def release(self, digest: bytes, request: Hashable) -> tuple[object, ...]:
        """``request`` will not need the picture any more. Raises KeyError when it does not hold it.

        Returns:
            Rows that are given up because they are beyond the budget.
        """
        held = self._held[request]
        del held[digest]
        if not held:
            del self._held[request]
        picture = self._pictures[digest]
        del picture.holders[request]
        if picture.holders:
            return ()
        if picture.ready:
            return self._rest(picture)
        if digest not in self._encoding:
            del self._queue[digest], self._pictures[digest]
        return ()

    def leave(self, request: Hashable) -> tuple[object, ...]:
        """``request`` has ended: it releases all that it holds. One that holds nothing may leave, too."""
        evicted: list[object] = []
        for digest in list(self._held.get(request, ())):
            evicted += self.release(digest, request)
        return tuple(evicted)

    # -- encoding -----------------------------------------------------------------------------------------------------

    @property
    def more(self) -> bool:
        """Does a picture wait to be encoded?"""
        return bool(self._queue)

    @property
    def queue(self) -> tuple[bytes, ...]:
        """Pictures that wait to be encoded, in the order in which they are."""
        return tuple(self._queue)

    def next_encode(self) -> bytes | None:
        """The picture to be encoded now: of those that somebody waits for the one that was asked for first."""
        if not self._queue:
            return None
        digest, _ = self._queue.popitem(last=False)
        self._encoding.add(digest)
        return digest

    def waiting(self, digest: bytes) -> tuple[Hashable, ...]:
        """Requests that hold the picture, in the order in which they asked."""
        picture = self._pictures.get(digest)
        return () if picture is None else tuple(picture.holders)

    def encoded(self, digest: bytes, rows: object, nbytes: int) -> Encoded:
        """The picture that :meth:`next_encode` named has become ``rows``. Raises KeyError for any other one."""
        self._encoding.remove(digest)
        picture = self._pictures[digest]
        picture.rows, picture.nbytes, picture.ready = rows, nbytes, True
        self.bytes += nbytes
        self.stats.encoded += 1
        evicted = self.evict_until(self.budget) if picture.holders else self._rest(picture)
        return Encoded(tuple(picture.holders), evicted)

    def failed(self, digest: bytes) -> tuple[Hashable, ...]:
        """The picture that :meth:`next_encode` named could not be encoded. Raises KeyError for any other one.

        Returns:
            Requests that waited for it, in the order in which they asked; they hold it no more. Whoever asks from now
            on, one of them included, has it tried again.
        """
        self._encoding.remove(digest)
        self.stats.failed += 1
        waiting = tuple(self._pictures.pop(digest).holders)
        for request in waiting:
            held = self._held[request]
            del held[digest]
            if not held:
                del self._held[request]
        return waiting

    # -- room ---------------------------------------------------------------------------------------------------------

    def evict_until(self, budget: int) -> tuple[object, ...]:
        """Give up rows that nobody needs, least recently needed first, until ``budget`` bytes are left at most.

        Returns:
            Their rows, in order.
        """
        evicted: list[object] = []
        while self.bytes > budget and self._idle:
            _, picture = self._idle.popitem(last=False)
            evicted.append(self._give_up(picture))
        return tuple(evicted)

    def _rest(self, picture: _Picture) -> tuple[object, ...]:
        """Nobody needs ``picture`` now. One that is too large by itself does not push all others out first."""
        if picture.nbytes > self.budget:
            return (self._give_up(picture),)
        self._idle[picture.digest] = picture
        return self.evict_until(self.budget)

    def _give_up(self, picture: _Picture) -> object:
        del self._pictures[picture.digest]
        self.bytes -= picture.nbytes
        self.stats.evicted += 1
        return picture.rows

    def check_integrity(self) -> None:
        """Recounts everything. Linear: for idle moments and tests.

        Raises:
            AssertionError: says what does not add up.
        """
        held: dict[Hashable, set[bytes]] = {}
        for digest, picture in self._pictures.items():
            places = (digest in self._queue) + (digest in self._encoding) + picture.ready
            assert places == 1, f"picture {digest.hex()} is in {places} of queue, work and cache"
            assert picture.holders or digest not in self._queue, (
                f"picture {digest.hex()} is queued for nobody"
            )
            assert (digest in self._idle) == (picture.ready and not picture.holders), digest.hex()
            for request in picture.holders:
                held.setdefault(request, set()).add(digest)
        known = set(self._pictures)
        assert {*self._queue, *self._encoding, *self._idle} <= known, "a picture is nobody's"
        assert held == {request: set(digests) for request, digests in self._held.items()}, "holders"
        assert self.bytes == sum(picture.nbytes for picture in self._pictures.values()), "bytes"
        assert self.bytes <= self.budget or not self._idle, "rows that nobody needs are beyond the budget"
