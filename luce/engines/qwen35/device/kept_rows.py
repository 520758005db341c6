"""Encoded rows of the last pictures, on the device that encoded them and where the text model is.

A picture's rows go to host memory, where whoever needs them shares them for as long as he likes; 20 MB of a megapixel
for a model of 27B. A pass that reads them cannot begin before they are back on the device. So a copy of the last ones
stays here: a prompt that comes soon after its pictures finds it, and all others take theirs from the host.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any

import attrs
import numpy.typing as npt

from luce.compute.device import Array, Device, Event

__all__ = ["KEPT_PICTURES", "KEPT_ROWS", "KeptRows", "kept_rows"]

Host = npt.NDArray[Any]

KEPT_ROWS = 4096
"""At most: four pictures of a megapixel."""
KEPT_PICTURES = 4
"""As many of the largest, at most."""


def kept_rows(tokens: int) -> int:
    """Rows that are kept where a picture has up to ``tokens``."""
    return min(KEPT_ROWS, KEPT_PICTURES * tokens)


@attrs.define(eq=False)
class _Kept:
    first: int
    count: int
    rows: weakref.ref[Host]
    """The same in host memory."""
    there: Event
    used: Event | None = None
    """Behind the last pass that read them."""


class KeptRows:
    """Used by the thread that encodes and by that of the steps, each with a stream of its own.

    Args:
        array: f32 [rows, hidden] on ``device``. The oldest give way to new ones.
    """

    def __init__(self, device: Device, array: Array) -> None:
        self._device, self._array = device, array
        self._kept: list[_Kept] = []
        self._next = 0
        self._lock = threading.Lock()

    def keep(self, rows: Host, encoded: Array) -> None:
        """``encoded`` rows, which ``rows`` are to be in host memory, are kept, if there is room for so many. On the
        encoder's stream."""
        count, size = len(rows), int(self._array.shape[0])
        if count > size:
            return
        with self._lock:
            first = self._next if self._next + count <= size else 0
            self._next = first + count
            for old in self._kept:
                if _overlap(old, first, count) and old.used is not None:
                    old.used.wait()
            self._kept = [old for old in self._kept if not _overlap(old, first, count)]
            self._device.copy(self._array[first : first + count], encoded)
            there = self._device.event()
            there.record()
            self._kept.append(_Kept(first, count, weakref.ref(rows), there))

    def put(self, rows: Host, start: int, to: Array) -> bool:
        """Copy ``rows`` from ``start`` on into ``to`` [n, hidden], on the current stream. False: they are not here."""
        with self._lock:
            found = next((kept for kept in self._kept if kept.rows() is rows), None)
            if found is None:
                return False
            first = found.first + start
            found.there.wait()
            self._device.copy(to, self._array[first : first + int(to.shape[0])])
            found.used = self._device.event()
            found.used.record()
            return True


def _overlap(kept: _Kept, first: int, count: int) -> bool:
    return kept.first < first + count and first < kept.first + kept.count
