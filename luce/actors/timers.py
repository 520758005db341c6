"""One task that owns every delay of every chart.

A chart says ``<send target="#_timer" event="…" delay="…"/>``; when the delay has passed the event goes to the
mailbox of the actor that asked. The same send without a delay stops the timer. Timers run on trio's clock, so that
virtual time covers them.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Mapping
from math import inf

import trio

from luce.charts.interpreter import Send

__all__ = ["Timers"]

SPARE = 64
"""Stopped timers that may wait for their time beside as many as are set."""


class Timers:
    """Pending delays, keyed by (owner, event): setting one again moves it, ending an owner clears its own."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Hashable, str]] = []
        self._due: dict[tuple[Hashable, str], tuple[int, float, Callable[[], None]]] = {}
        """Those that are set: serial number, time, action."""
        self._serial = 0
        self._sleeper: trio.CancelScope | None = None

    def set(self, owner: Hashable, event: str, delay: float, action: Callable[[], None]) -> None:
        """Call ``action`` once, ``delay`` seconds from now."""
        self._serial += 1
        due = trio.current_time() + delay
        self._due[owner, event] = (self._serial, due, action)
        self._forget_stopped()
        earliest = self._heap[0][0] if self._heap else inf
        heapq.heappush(self._heap, (due, self._serial, owner, event))
        if due < earliest and self._sleeper is not None:
            self._sleeper.cancel()

    def obey(
        self, owner: Hashable, send: Send, delays: Mapping[str, float], fire: Callable[[str], None]
    ) -> None:
        """Do what a chart's send to ``#_timer`` says: with a delay arm, without one stop.

        ``delays`` are the operator's seconds per event; where there is none, the chart's own count.
        """
        if send.delay is None:
            self.clear(owner, send.event)
        else:
            self.set(owner, send.event, delays.get(send.event, send.delay), lambda: fire(send.event))

    def clear(self, owner: Hashable, event: str) -> None:
        """Forget one timer; nothing happens if it is not set."""
        self._due.pop((owner, event), None)

    def _forget_stopped(self) -> None:
        """Stopped timers stay in the heap; most are stopped long before their time, so they would pile up there."""
        if len(self._heap) > 2 * len(self._due) + SPARE:
            pending = {serial for serial, _, _ in self._due.values()}
            self._heap = [entry for entry in self._heap if entry[1] in pending]
            heapq.heapify(self._heap)

    def __len__(self) -> int:
        return len(self._due)

    async def run(self) -> None:
        """Fire timers until cancelled."""
        while True:
            self._fire()
            with trio.CancelScope(deadline=self._heap[0][0] if self._heap else inf) as self._sleeper:
                await trio.sleep_forever()

    def _fire(self) -> None:
        now = trio.current_time()
        while self._heap and self._heap[0][0] <= now:
            _, serial, owner, event = heapq.heappop(self._heap)
            pending = self._due.get((owner, event))
            if pending is not None and pending[0] == serial:
                del self._due[owner, event]
                pending[2]()
