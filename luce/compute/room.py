"""One allocation that many arrays come from: each by itself would be rounded up to the device's pages of 2 MiB."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import attrs

__all__ = ["Room", "room_bytes"]

UNIT = 512
"""Bytes at a multiple of which every array starts: no kernel and no copy asks for more."""
SMALL = 64 << 10
"""For arrays of a few numbers that no plan lists."""


def room_bytes(sizes: Iterable[int]) -> int:
    """Bytes of a room for arrays of these sizes."""
    return sum(-(-size // UNIT) * UNIT for size in sizes) + SMALL


@attrs.define(eq=False)
class Room:
    """Memory from ``start`` on, given out once from its beginning to its end and never taken back; what it has no
    place for comes from elsewhere."""

    start: Any
    """Place of its first byte; adding a number of bytes gives another place."""
    size: int
    elsewhere: Callable[[int], Any]
    used: int = 0

    def take(self, size: int) -> Any:
        """The place of ``size`` bytes."""
        stop = self.used + -(-size // UNIT) * UNIT
        if stop > self.size:
            return self.elsewhere(size)
        at, self.used = self.used, stop
        return self.start + at
