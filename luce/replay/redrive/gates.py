"""Mailboxes and turns that wait for the trace: nothing is handled, and neither a turn nor the server ends, before its
record is due."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from luce.actors.mailbox import Mailbox, Turn, Waker

__all__ = ["GatedMailbox", "GatedTurn"]


class GatedMailbox(Mailbox[Any]):
    """Messages are held back until they are let through, one at a time.

    Args:
        precedence: who is next among those that wait; None: who came first.
    """

    def __init__(
        self, turn: Turn, waker: Waker | None = None, precedence: Callable[[Any], Any] | None = None
    ) -> None:
        super().__init__(turn, waker)
        self.held: deque[Any] = deque()
        self.precedence = precedence

    def put(self, item: Any) -> None:
        if not self._closed:
            self._turn.pending += 1
            self.held.append(item)

    @property
    def next(self) -> Any | None:
        """Whom the actor would handle next."""
        if not self.held:
            return None
        return self.held[0] if self.precedence is None else min(self.held, key=self.precedence)

    def let_through(self) -> None:
        """The next one may be handled."""
        item = self.next
        assert item is not None
        self.held.remove(item)
        self.items.append(item)
        self._waker.wake()

    def last_goes_first(self) -> None:
        """What was put last comes from outside, and its record says that it is handled now."""
        self.held.rotate(1)

    def close(self) -> int:
        dropped = len(self.held)
        self.held.clear()
        for _ in range(dropped):
            self.handled()
        return dropped + super().close()


class GatedTurn(Turn):
    """Ends only when it is told to, and every message has been handled."""

    def __init__(self) -> None:
        super().__init__()
        self._allowed = False
        self.waits = False
        """The loop asks whether it may go on, and may not yet."""
        self._end = Waker()

    def mailbox(self, waker: Waker | None = None) -> GatedMailbox:
        return GatedMailbox(self, waker)

    def over(self) -> bool:
        if self.pending or not self._allowed:
            self.waits = True
            return False
        self._allowed = self.waits = False
        return True

    def idle(self) -> None:
        """The loop, if it sleeps, has nothing to do before it is allowed to."""

    def allow(self) -> None:
        """The loop may go on once."""
        self._allowed = True
        self.waker.wake()

    async def last(self) -> None:
        await self._end.sleep()

    def end(self) -> bool:
        """The server may say that it has stopped. False: it does not ask."""
        asks = self._end.sleeper is not None
        self._end.wake()
        return asks
