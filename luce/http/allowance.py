"""How much a client may ask of the protocol itself: frames that cost the server work and bring no request on."""

from __future__ import annotations

import h2.events

__all__ = ["FRAMES", "FRAMES_PER_SECOND", "SENT_EARNS", "Allowance", "cost_of"]

FRAMES, FRAMES_PER_SECOND = 1000, 100
RESET_COST = 10
"""A reset makes a task begin and end in vain."""
SENT_EARNS = 4
"""Of the allowance, for each DATA frame: a client may well answer it with two window updates."""


class Allowance:
    """A bucket of frames that a connection may spend, which fills with time and with useful work.

    Args:
        most: that it holds, and at first.
        per_second: that come back with time.
        now: seconds on the clock that :meth:`spend` is told.
    """

    def __init__(self, most: float, per_second: float, now: float) -> None:
        self._most = self._left = most
        self._per_second = per_second
        self._counted = now

    def spend(self, cost: float, now: float) -> bool:
        """Take ``cost`` out; False when there is not so much left."""
        self.earn((now - self._counted) * self._per_second)
        self._counted = now
        self._left -= cost
        return self._left >= 0

    def earn(self, count: float) -> None:
        self._left = min(self._most, self._left + count)


def cost_of(event: h2.events.Event) -> int:
    """What a frame costs of the allowance: nothing if it brings a request on."""
    if isinstance(event, h2.events.StreamReset):
        return RESET_COST
    if isinstance(event, h2.events.DataReceived):
        return int(not event.data and event.stream_ended is None)
    return int(
        isinstance(
            event,
            (
                h2.events.PingReceived,
                h2.events.PriorityUpdated,
                h2.events.RemoteSettingsChanged,
                h2.events.UnknownFrameReceived,
                h2.events.WindowUpdated,
            ),
        )
    )
