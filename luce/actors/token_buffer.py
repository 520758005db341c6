"""What a request has produced and its client has not taken yet.

A request never waits on a socket: it puts into this buffer and goes on, to the end of its answer if the buffer holds
that, and its slot is free for others however slowly its client reads. A full buffer is an event of the request's chart
(``client.full``), and so is a drained one; while it is full the request is given no further rows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import attrs
import trio

from luce.actors.mailbox import Waker
from luce.engines.seam import SampledToken
from luce.errors import LuceError

__all__ = ["Delta", "End", "TokenBuffer"]


class Delta(NamedTuple):
    """A piece of an answer: text that is final, and the tokens behind it.

    Text may lag behind tokens (half characters and possible stop strings are held back), so either may be empty.
    """

    text: str
    tokens: tuple[SampledToken, ...]


@attrs.frozen
class End:
    """The one last item of every answer."""

    reason: str
    """'stop', 'length', 'cancelled' or 'error'."""
    error: LuceError | None = None
    stop: str | None = None
    """The stop string that ended it, if one did."""


class TokenBuffer:
    """Bounded by the chart, not by blocking: one writer (the request), one reader (the client's handler).

    Args:
        limit: deltas that may wait before the client counts as stalled.
        on_drained: called once when a full buffer has been read down to half.
        waker: wakes the reader; buffers that one reader reads in turn have one in common.
    """

    def __init__(self, limit: int, on_drained: Callable[[], None], waker: Waker | None = None) -> None:
        self._limit = limit
        self._on_drained = on_drained
        self._items: deque[Delta] = deque()
        self._end: End | None = None
        self._full = False
        self._waker = Waker() if waker is None else waker
        self.last_read = trio.current_time()
        """When the client last took a piece; before that, when the request was made."""
        self.tokens = 0
        """Tokens that were ever put."""

    def put(self, delta: Delta) -> bool:
        """Add a piece; True when this made the buffer full."""
        items = self._items
        items.append(delta)
        self.tokens += len(delta.tokens)
        if self._waker.sleeper is not None:
            self._waker.wake()
        if len(items) >= self._limit and not self._full:
            self._full = True
            return True
        return False

    def end(self, end: End) -> None:
        """Close the answer. Exactly once; later calls are a bug."""
        assert self._end is None, "an answer ended twice"
        self._end = end
        self._waker.wake()

    @property
    def ended(self) -> bool:
        return self._end is not None

    @property
    def end_reached(self) -> End | None:
        """The end, once it was said; pieces may still wait before it."""
        return self._end

    def __len__(self) -> int:
        """Pieces that the client has not taken yet."""
        return len(self._items)

    async def get(self) -> Delta | End:
        """The next piece; after the last one the end, for ever."""
        while (item := self.take()) is None:
            await self.arrival()
        return item

    def arrival(self) -> Awaitable[None]:
        """Await it at once, when :meth:`take` has found nothing: returns when there may be something, in this buffer or
        in another one with the same waker."""
        return self._waker.sleep()

    def take(self) -> Delta | End | None:
        """What :meth:`get` gives, without waiting; None when there is nothing yet."""
        if not self._items:
            return self._end
        delta = self._items.popleft()
        self.last_read = trio.current_time()
        if self._full and len(self._items) <= self._limit // 2:
            self._full = False
            self._on_drained()
        return delta
