"""Mailboxes and the turn rule.

An actor reads one mailbox. All mailboxes of a server share one :class:`Turn`, which counts messages that were put
and not yet handled. The step loop plans only when that count is zero: a step's results have then reached their
requests and everything those sent back has arrived (design §3, *turns*). Without that rule the charts can be driven
into states that nobody wrote (a grant to a cancelled request is the first one the explorer finds).
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from typing import Any, Generic, TypeVar

import outcome
import trio
from trio.lowlevel import current_task, reschedule, wait_task_rescheduled

__all__ = ["Mailbox", "Turn", "Waker"]

T = TypeVar("T")
ResultT = TypeVar("ResultT")


class _Woken(outcome.Outcome[None]):
    """What a woken task gets: nothing. `outcome.Value` can be taken once, so that trio makes one for every wake-up;
    this one can be taken again and again, at a tenth of the cost."""

    def unwrap(self) -> None:
        return None

    def send(self, gen: Generator[ResultT, None, object]) -> ResultT:
        return gen.send(None)

    async def asend(self, agen: AsyncGenerator[ResultT, None]) -> ResultT:
        return await agen.asend(None)


_WOKEN = _Woken()


class Waker:
    """Lets one task sleep until another one wakes it.

    A `trio.Event` that can be used again and a `ParkingLot` for one: thousands of messages a second pass here.
    """

    __slots__ = ("sleeper",)

    def __init__(self) -> None:
        self.sleeper: trio.lowlevel.Task | None = None
        """Who sleeps, to be read only; asking is cheaper than waking nobody."""

    def sleep(self) -> Awaitable[None]:
        """Await it at once: returns after the next :meth:`wake`. Check the condition before and after: it is not
        remembered."""
        assert self.sleeper is None, "two tasks wait for one thing"
        self.sleeper = current_task()
        return wait_task_rescheduled(self._abort)  # noqa: ASYNC105 - a coroutine less for every message

    def wake(self) -> None:
        """Wake the sleeper; nothing happens when nobody sleeps."""
        task = self.sleeper
        if task is not None:
            self.sleeper = None
            reschedule(task, _WOKEN)

    def _abort(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        self.sleeper = None
        return trio.lowlevel.Abort.SUCCEEDED


class Turn:
    """Counts messages in flight between the actors of one server."""

    def __init__(self) -> None:
        self.pending = 0
        self.waker = Waker()
        """Woken when the count falls to zero. The step loop sleeps here, and its mailbox wakes it here too."""

    def mailbox(self, waker: Waker | None = None) -> Mailbox[Any]:
        """A mailbox of an actor whose turn this is."""
        return Mailbox(self, waker)

    def over(self) -> bool:
        """May the loop go on? Asked by it alone, and again whenever it is woken."""
        return self.pending == 0

    async def last(self) -> None:
        """Return when the server may say that it has stopped. Awaited once, when every actor has ended."""

    def idle(self) -> None:
        """For mailboxes: the count has fallen to zero."""
        assert self.pending == 0, "a message was handled twice"
        self.waker.wake()


class Mailbox(Generic[T]):
    """An unbounded queue with one reader. Its length is bounded by the protocol (design-notes I13), not by it.

    ``put`` never waits, so that no actor can be held up by another one.
    """

    def __init__(self, turn: Turn, waker: Waker | None = None) -> None:
        self._turn = turn
        self.items: deque[T] = deque()
        """Messages that wait. Only the reader takes any, from the left, and calls :meth:`handled` for each."""
        self._waker = waker if waker is not None else Waker()
        self._closed = False
        self.arrival: Callable[[], Awaitable[None]] = self._waker.sleep
        """Await it at once, when :meth:`pop` has found nothing: returns when there may be a message."""

    def put(self, item: T) -> None:
        """Deliver a message. To a closed mailbox it is dropped: its actor has ended and owes nobody an answer."""
        if self._closed:
            return
        self._turn.pending += 1
        self.items.append(item)
        waker = self._waker
        if waker.sleeper is not None:
            waker.wake()

    def await_reader(self) -> None:
        """The reader's task has been started and not run yet; it calls :meth:`handled` when it does.

        Else the loop could grant slots before, and of several who came together some would ask for their pictures a
        moment ahead of others.
        """
        self._turn.pending += 1

    def pop(self) -> T | None:
        """The next message without waiting, or None. The reader must call :meth:`handled` for it."""
        return self.items.popleft() if self.items else None

    def handled(self) -> None:
        """The reader has done what the message that it popped asks for, answers included."""
        turn = self._turn
        turn.pending -= 1
        if turn.pending <= 0:
            turn.idle()

    def close(self) -> int:
        """No more messages; those waiting are dropped and counted as handled. Returns how many."""
        self._closed = True
        dropped = len(self.items)
        self.items.clear()
        for _ in range(dropped):
            self.handled()
        return dropped

    def __len__(self) -> int:
        return len(self.items)
