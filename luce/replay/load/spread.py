"""A distribution in bounded memory: exact sum and ends, quantiles within 1 %."""

from __future__ import annotations

import math

import attrs

__all__ = ["Spread"]

RATIO = math.log(1.02)
LEAST = 1e-6
"""Seconds; smaller values are counted as this."""


@attrs.define
class Spread:
    """Of values that are not negative."""

    count: int = 0
    sum: float = 0.0
    least: float = math.inf
    most: float = 0.0
    _buckets: dict[int, int] = attrs.field(factory=dict, repr=False)

    def add(self, value: float) -> None:
        value = max(value, 0.0)
        self.count += 1
        self.sum += value
        self.least = min(self.least, value)
        self.most = max(self.most, value)
        bucket = math.floor(math.log(max(value, LEAST)) / RATIO)
        self._buckets[bucket] = self._buckets.get(bucket, 0) + 1

    @property
    def mean(self) -> float | None:
        return self.sum / self.count if self.count else None

    def quantile(self, share: float) -> float | None:
        """The value that ``share`` of all do not exceed; None without any."""
        rank, seen = max(math.ceil(share * self.count), 1), 0
        if 0 < self.count <= rank:
            return self.most
        for bucket in sorted(self._buckets):
            seen += self._buckets[bucket]
            if seen >= rank:
                middle = math.exp((bucket + 0.5) * RATIO)
                return min(max(middle, self.least), self.most)
        return None

    def summary(self) -> dict[str, float | int | None]:
        return {
            "count": self.count,
            "mean": self.mean,
            "p50": self.quantile(0.5),
            "p90": self.quantile(0.9),
            "p99": self.quantile(0.99),
            "max": self.most if self.count else None,
        }
