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

__all__ = ["Mailbox", "Turn", "Waker"]

T = TypeVar("T")


class Waker:
    """Lets one task sleep until another one wakes it.

    A `trio.Event` that can be used again and a `ParkingLot` for one: thousands of messages a second pass here.
    """

    __slots__ = ("_task",)

    def __init__(self) -> None:
        self._task: trio.lowlevel.Task | None = None

    async def sleep(self) -> None:
        """Return after the next :meth:`wake`. Check the condition before and after: it is not remembered."""
        assert self._task is None, "two tasks wait for one thing"
        self._task = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(self._abort)

    def wake(self) -> None:
        """Wake the sleeper; nothing happens when nobody sleeps."""
        task = self._task
        if task is not None:
            self._task = None
            trio.lowlevel.reschedule(task)

    def _abort(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        self._task = None
        return trio.lowlevel.Abort.SUCCEEDED


class Turn:
    """Counts messages in flight between the actors of one server."""

    def __init__(self) -> None:
        self.pending = 0
        self.waker = Waker()
        """Woken when the count falls to zero. The step loop sleeps here, and its mailbox wakes it here too."""

    def handled(self) -> None:
        self.pending -= 1
        assert self.pending >= 0, "a message was handled twice"
        if not self.pending:
            self.waker.wake()


class Mailbox(Generic[T]):
    """An unbounded queue with one reader. Its length is bounded by the protocol (design-notes I13), not by it.

    ``put`` never waits, so that no actor can be held up by another one.
    """

    def __init__(self, turn: Turn, waker: Waker | None = None) -> None:
        self._turn = turn
        self._items: deque[T] = deque()
        self._waker = waker if waker is not None else Waker()
        self._closed = False

    def put(self, item: T) -> None:
        """Deliver a message. To a closed mailbox it is dropped: its actor has ended and owes nobody an answer."""
        if self._closed:
            return
        self._turn.pending += 1
        self._items.append(item)
        self._waker.wake()

    def pop(self) -> T | None:
        """The next message without waiting, or None. The reader must call :meth:`handled` for it."""
        return self._items.popleft() if self._items else None

    async def get(self) -> T:
        """The next message. The reader must call :meth:`handled` for it."""
        while not self._items:
            await self._waker.sleep()
        return self._items.popleft()

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
