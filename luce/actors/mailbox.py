"""Mailboxes and the turn rule.

An actor reads one mailbox. All mailboxes of a server share one :class:`Turn`, which counts messages that were put
and not yet handled. The step loop plans only when that count is zero: a step's results have then reached their
requests and everything those sent back has arrived (design §3, *turns*). Without that rule the charts can be driven
into states that nobody wrote (a grant to a cancelled request is the first one the explorer finds).
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

import trio

__all__ = ["Mailbox", "Turn"]

T = TypeVar("T")


class Turn:
    """Counts messages in flight between the actors of one server."""

    def __init__(self) -> None:
        self.pending = 0
        self.lot = trio.lowlevel.ParkingLot()
        """Unparked when the count falls to zero. The step loop's mailbox wakes its reader through it too."""

    def added(self) -> None:
        self.pending += 1

    def handled(self) -> None:
        self.pending -= 1
        assert self.pending >= 0, "a message was handled twice"
        if not self.pending:
            self.lot.unpark_all()


class Mailbox(Generic[T]):
    """An unbounded queue with one reader. Its length is bounded by the protocol (design-notes I13), not by it.

    ``put`` never waits, so that no actor can be held up by another one.
    """

    def __init__(self, turn: Turn, lot: trio.lowlevel.ParkingLot | None = None) -> None:
        self._turn = turn
        self._items: deque[T] = deque()
        self._lot = trio.lowlevel.ParkingLot() if lot is None else lot  # an empty lot is falsy
        self._closed = False

    def put(self, item: T) -> None:
        """Deliver a message. To a closed mailbox it is dropped: its actor has ended and owes nobody an answer."""
        if self._closed:
            return
        self._turn.added()
        self._items.append(item)
        self._lot.unpark()

    def pop(self) -> T | None:
        """The next message without waiting, or None. The reader must call :meth:`handled` for it."""
        return self._items.popleft() if self._items else None

    async def get(self) -> T:
        """The next message. The reader must call :meth:`handled` for it."""
        while not self._items:
            await self._lot.park()
        return self._items.popleft()

    async def wait(self) -> None:
        """Return when a message is there."""
        while not self._items:
            await self._lot.park()

    def handled(self) -> None:
        self._turn.handled()

    def close(self) -> int:
        """No more messages; those waiting are dropped and counted as handled. Returns how many."""
        self._closed = True
        dropped = len(self._items)
        self._items.clear()
        for _ in range(dropped):
            self._turn.handled()
        return dropped

    def __len__(self) -> int:
        return len(self._items)
