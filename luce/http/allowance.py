"""How much a client may ask of the protocol itself: frames that cost the server work and bring no request on."""

from __future__ import annotations

__all__ = ["Allowance"]


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
