"""Token ids of requests whose tokens are not in the trace: other ids, that are alike where those were alike.

A sequence is runs of consecutive ids that no other one has, but for what it has in common with others by
:class:`luce.trace.schema.Alike`. A few numbers for each run.
"""

from __future__ import annotations

from bisect import bisect_right

import numpy as np
import numpy.typing as npt

from luce.trace.schema import Alike

__all__ = ["Sequences"]

_IDS = (1 << 31) - 2
"""Less than this are used, and then again from 0 on: nothing is kept for so long."""


class _Sequence:
    def __init__(self) -> None:
        self.starts: list[int] = []
        """Where each run begins."""
        self.ids: list[int] = []
        """Its first id."""
        self.length = 0

    def append(self, id_: int, count: int) -> None:
        if not self.starts or self.ids[-1] + self.length - self.starts[-1] != id_:
            self.starts.append(self.length)
            self.ids.append(id_)
        self.length += count


class Sequences:
    """Of all requests of a trace, by arrival number."""

    def __init__(self) -> None:
        self._known: dict[int, _Sequence] = {}
        self._next = 0

    def learn(self, alike: Alike) -> None:
        """In the order of the trace, and before anybody asks.

        Raises:
            ValueError: it contradicts what was said before.
        """
        mine, theirs = self._grown(alike.order, 0), self._grown(alike.other, alike.common)
        if alike.order == alike.other or mine.length > alike.common:
            raise ValueError(
                f"requests {alike.order} and {alike.other} cannot be alike for {alike.common} rows"
            )
        at = max(bisect_right(theirs.starts, mine.length) - 1, 0)
        ends = [*theirs.starts[at + 1 :], theirs.length]
        for start, end, id_ in zip(theirs.starts[at:], ends, theirs.ids[at:], strict=True):
            if mine.length < min(end, alike.common):
                mine.append(id_ + mine.length - start, min(end, alike.common) - mine.length)

    def tokens(self, order: int, length: int) -> npt.NDArray[np.int32]:
        """The first ``length`` ids of a sequence. Once this is asked of one, nothing is learnt of it."""
        found = self._grown(order, length)
        if not length:
            return np.zeros(0, np.int32)
        ids = np.empty(length, np.int32)
        for start, end, id_ in zip(found.starts, [*found.starts[1:], found.length], found.ids, strict=True):
            if start < length:
                ids[start : min(end, length)] = np.arange(id_, id_ + min(end, length) - start)
        return ids

    def _grown(self, order: int, length: int) -> _Sequence:
        found = self._known.setdefault(order, _Sequence())
        if found.length < length:
            count = length - found.length
            if self._next + count > _IDS:
                self._next = 0
            found.append(self._next, count)
            self._next += count
        return found
