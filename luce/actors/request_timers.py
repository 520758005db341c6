"""The timers of one request: what its chart arms and stops, and what it is told when one runs out."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from luce.actors.deadline import TimeLimit
from luce.actors.messages import Plain, QueueExpired, RequestMessage
from luce.actors.token_buffer import TokenBuffer
from luce.charts.interpreter import Send
from luce.errors import CapacityError

if TYPE_CHECKING:
    from luce.actors.wiring import Wiring

__all__ = ["RequestTimers"]


class RequestTimers:
    """Args:
    order: the request's arrival number, whose timers these are.
    buffer: of its answer; says when its client last read.
    limit: when its answer has to be complete.
    tell: takes the message of a timer that ran out.
    """

    def __init__(
        self,
        order: int,
        wiring: Wiring,
        buffer: TokenBuffer,
        limit: TimeLimit | None,
        tell: Callable[[RequestMessage], None],
    ) -> None:
        self._order = order
        self._wiring = wiring
        self._buffer = buffer
        self._limit = limit
        self._tell = tell

    def obey(self, send: Send) -> None:
        """Do what the chart's send to ``#_timer`` says. The limit's delay is what is left of it; most requests have
        none, and arm no timer for it."""
        delays = self._wiring.options.delays
        if send.event == "deadline.expired":
            if self._limit is None:
                return
            delays = {send.event: max(self._limit.due - self._wiring.now(), 0.0)}
        self._wiring.timers.obey(self._order, send, delays, self._fire)

    def _fire(self, event: str) -> None:
        if event == "queue.expired":
            waited = self._wiring.options.queue_timeout
            error = CapacityError(f"the request waited {waited:g} s for a free slot", retry_after=5)
            self._tell(QueueExpired(error))
        elif event == "client.timeout" and (left := self._patience()) > 0:
            self._wiring.timers.set(self._order, event, left, lambda: self._fire(event))
        else:
            self._tell(Plain(event))

    def _patience(self) -> float:
        """Seconds that the client may still take nothing. A slow one that reads is not gone."""
        return self._buffer.last_read + self._wiring.options.client_timeout - self._wiring.now()
