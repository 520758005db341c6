"""The time of a trace: it stands still until the next record's."""

from __future__ import annotations

from math import inf

import trio

__all__ = ["TraceClock"]


class TraceClock(trio.abc.Clock):
    """Starts at 0. `trio.testing.MockClock` can do this, and more that every turn of trio's loop would pay for."""

    def __init__(self) -> None:
        self._now = 0.0

    def start_clock(self) -> None: ...

    def current_time(self) -> float:
        return self._now

    def deadline_to_sleep_time(self, deadline: float) -> float:
        return 0.0 if deadline <= self._now else inf

    def reach(self, t: float) -> None:
        """It is ``t`` now; if that has passed, nothing happens."""
        self._now = max(self._now, t)
