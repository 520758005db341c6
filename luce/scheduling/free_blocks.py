"""The free blocks, lowest number first, kept as runs of neighbours."""

from __future__ import annotations

import heapq

import numpy as np
from numpy.typing import NDArray

__all__ = ["FreeBlocks"]

_SHIFT = 32
_MASK = (1 << _SHIFT) - 1


class FreeBlocks:
    """Free block numbers, all free at first. O(log n) for each run that is taken or given back, whatever n is.

    The runs are a heap of integers ``start << 32 | stop``. They never overlap, so the run with the lowest start holds
    the lowest free numbers, and it may be shortened in place. Neighbouring runs are not joined: that changes no answer,
    and at worst every run is one block.
    """

    def __init__(self, num_blocks: int) -> None:
        self._runs = [num_blocks] if num_blocks else []
        self._count = num_blocks

    def __len__(self) -> int:
        return self._count

    def pop(self, count: int) -> NDArray[np.intp]:
        """Takes the ``count`` lowest numbers: intp (count,), ascending. There must be as many."""
        assert count <= self._count, (count, self._count)
        self._count -= count
        runs = self._runs
        starts: list[int] = []
        lengths: list[int] = []
        while count:
            start, stop = runs[0] >> _SHIFT, runs[0] & _MASK
            if stop - start > count:
                runs[0] = (start + count) << _SHIFT | stop
                stop = start + count
            else:
                heapq.heappop(runs)
            starts.append(start)
            lengths.append(stop - start)
            count -= stop - start
        return _expand(starts, lengths)

    def push(self, ids: NDArray[np.intp]) -> None:
        """Gives back ``ids``, in any order, each taken before."""
        if not len(ids):
            return
        self._count += len(ids)
        ordered = np.sort(ids)
        last = np.flatnonzero(np.diff(ordered, append=-1) != 1)
        first = np.concatenate(([0], last[:-1] + 1))
        for run in (ordered[first] << _SHIFT | ordered[last] + 1).tolist():
            heapq.heappush(self._runs, run)

    def ids(self) -> NDArray[np.intp]:
        """All free numbers, ascending. Linear: for checks."""
        runs = sorted(self._runs)
        return _expand([run >> _SHIFT for run in runs], [(run & _MASK) - (run >> _SHIFT) for run in runs])


def _expand(starts: list[int], lengths: list[int]) -> NDArray[np.intp]:
    """The numbers of the runs, one after the other."""
    if len(starts) == 1:
        return np.arange(starts[0], starts[0] + lengths[0], dtype=np.intp)
    if len(starts) == sum(lengths):
        return np.array(starts, np.intp)
    sizes = np.array(lengths, np.intp)
    ends = np.cumsum(sizes)
    return np.repeat(np.array(starts, np.intp) - (ends - sizes), sizes) + np.arange(ends[-1], dtype=np.intp)
