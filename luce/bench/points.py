"""Measured figures, each beside its limit: what `luce bench` prints, writes as JSON and compares."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any, Literal

import attrs

__all__ = ["Point", "Unit", "of_runs"]

Unit = Literal["tok/s", "ms"]
"""More is better, or less."""


@attrs.frozen
class Point:
    """One figure: the median of its runs, of pauses the longest."""

    name: str
    """What was measured, unique within a report: two reports are compared by it."""
    unit: Unit
    value: float
    limit: float | None
    """What no implementation can beat, in the same unit; None where nothing simple says."""
    bound: str | None = None
    """What the limit comes from: "bytes" or "FLOPs"."""
    runs: tuple[float, ...] = ()
    details: dict[str, Any] = attrs.field(factory=dict)
    """Further figures, by names with units."""

    @property
    def share(self) -> float | None:
        """Of the limit: 1 is as fast as the device can be at all."""
        if self.limit is None or self.value <= 0:
            return None
        return self.value / self.limit if self.unit == "tok/s" else self.limit / self.value

    @property
    def spread(self) -> float:
        """Of the runs, from the least to the most, as a part of the median."""
        return (max(self.runs) - min(self.runs)) / self.value if self.runs and self.value else 0.0


def of_runs(
    name: str,
    unit: Unit,
    runs: Sequence[float],
    limit: float | None,
    bound: str | None = None,
    **details: Any,
) -> Point:
    """The point of several runs."""
    return Point(name, unit, statistics.median(runs), limit, bound, tuple(runs), details)
