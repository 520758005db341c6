"""Counts of values by size, cheap enough to add to for every token."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate

__all__ = ["Histogram"]


class Histogram:
    """Args:
    bounds: upper ends of the buckets, ascending; values beyond the last one are counted, too.
    """

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        """Per bucket, and last of those beyond."""
        self.sum = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def cumulated(self) -> Iterator[tuple[str, int]]:
        """(upper end as Prometheus writes it, values up to it), the last one '+Inf' and all."""
        ends = [*(repr(float(bound)) for bound in self.bounds), "+Inf"]
        return zip(ends, accumulate(self.counts), strict=True)
