"""A picture's launches in slices, between the steps of the text model, so that no step waits for a whole picture.

Kernels of two streams take turns on the device as they come, and every kernel of a step would wait for one of the
tower's. So a slice runs behind the steps that are launched before it, and those launched after it run behind the slice:
streams pause for a step and a slice at most. A slice has as many parts as measured times put into its time.

While steps hold prompts alone nobody's stream waits for them, and slices run beside them: else the pictures of requests
that came together would be encoded one by one between their whole prompts.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from luce.compute.device import Device, Event

__all__ = ["SLICE_SECONDS", "Run", "Slices", "at_once"]

SLICE_SECONDS = 0.008
"""Of a slice, about. Together with a step of 40 ms it leaves streams room to a pause of 60."""
NEW = 0.5
"""Weight of a measurement against all before it."""

InOrder = Callable[[Callable[[], None]], bool]
"""Runs launches behind the steps launched before and before those that are launched later, or beside them where nobody
minds; returns when they are launched. True: between steps, so that nothing else runs meanwhile."""


Run = Callable[[Callable[[int], None], int, int], None]
"""Launches a picture: what launches a part by its number, how many there are, and the patches of the picture."""


def at_once(launch: Callable[[int], None], parts: int, size: int) -> None:
    """All parts, where nobody has to wait for them."""
    for part in range(parts):
        launch(part)


class Slices:
    """Args:
    in_order: how a slice takes its place among steps.
    """

    def __init__(self, device: Device, in_order: InOrder, seconds: float = SLICE_SECONDS) -> None:
        self._device, self._in_order, self._seconds = device, in_order, seconds
        self._rate: float | None = None
        """Seconds of a part, by the picture's patches."""

    def run(self, launch: Callable[[int], None], parts: int, size: int) -> None:
        """Launch all parts, slice by slice, on the caller's thread; returns when the last one is launched.

        Args:
            launch: a part, by its number.
            size: of the picture, in patches; parts take about as long as it is large.
        """
        done = 0
        while done < parts:
            stop = min(done + self._parts(size), parts)
            begun, ended = self._device.event(), self._device.event()
            alone = self._in_order(partial(_slice, launch, range(done, stop), begun, ended))
            if stop < parts:
                self._measure(begun, ended, (stop - done) * size, alone=alone)
            done = stop

    def _parts(self, size: int) -> int:
        return 1 if self._rate is None else max(1, int(self._seconds / (self._rate * size)))

    def _measure(self, begun: Event, ended: Event, work: int, *, alone: bool) -> None:
        """Wait for a slice. One that was not ``alone`` tells at most how long its parts take."""
        ended.synchronize()
        rate, known = max(ended.seconds_since(begun), 1e-9) / work, self._rate
        if known is None:
            self._rate = rate
        else:
            self._rate = known + NEW * ((rate if alone else min(rate, known)) - known)


def _slice(launch: Callable[[int], None], parts: range, begun: Event, ended: Event) -> None:
    begun.record()
    for part in parts:
        launch(part)
    ended.record()
