"""What a process holds over time, and whether it grows."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import attrs
import psutil  # type: ignore[import-untyped]

__all__ = ["Growth", "Holdings", "Sample", "growth", "holdings"]

MB = 1_000_000


@attrs.frozen
class Holdings:
    """What a process holds at a moment."""

    resident: float
    """MB."""
    files: int
    """Open ones, sockets included."""
    threads: int


@attrs.frozen
class Sample:
    at: float
    """Seconds since the traffic began."""
    resident: float
    """MB."""


@attrs.frozen
class Growth:
    """How resident memory went on after the warm-up."""

    before: float
    """MB: median of the first tenth of the time after the warm-up."""
    after: float
    """MB: median of its last tenth."""
    slope: float
    """MB an hour: least squares over all samples after the warm-up."""

    @property
    def grown(self) -> float:
        """MB."""
        return self.after - self.before


def holdings(pid: int) -> Holdings:
    process = psutil.Process(pid)
    with process.oneshot():
        return Holdings(process.memory_info().rss / MB, process.num_fds(), process.num_threads())


def growth(samples: Sequence[Sample], warm_up: float) -> Growth:
    """Of samples in order of time.

    Raises:
        ValueError: fewer than two of them are from after the warm-up.
    """
    warm = [sample for sample in samples if sample.at >= warm_up]
    if len(warm) < 2:
        raise ValueError(f"{len(warm)} samples are from after the warm-up of {warm_up:g} s; 2 are needed")
    tenth = max(len(warm) // 10, 1)
    fit = statistics.linear_regression([sample.at for sample in warm], [sample.resident for sample in warm])
    return Growth(
        statistics.median(sample.resident for sample in warm[:tenth]),
        statistics.median(sample.resident for sample in warm[-tenth:]),
        fit.slope * 3600,
    )
