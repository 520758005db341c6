"""How fast a device copies and multiplies, measured in the same run as everything that is held against it."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from luce.bench.limits import Speeds

__all__ = ["best_seconds", "host_speeds"]

HOST_BYTES = 1 << 28
"""Of each of two arrays: far more than any cache holds."""
HOST_SIDE = 1536
"""Of the square matrices that are multiplied."""


def host_speeds(size: int = HOST_BYTES, side: int = HOST_SIDE) -> Speeds:
    """Of one core, which is what the numpy engine's products run on: numpy's copy and its float32 product.

    Args:
        size: bytes of each of two arrays.
        side: of the square matrices.
    """
    source = np.ones(size // 4, np.float32)
    target = np.empty_like(source)
    generator = np.random.default_rng(0)
    a, b = (generator.standard_normal((side, side), np.float32) for _ in range(2))
    out = np.empty((side, side), np.float32)
    copied = best_seconds(lambda: np.copyto(target, source))
    multiplied = best_seconds(lambda: np.dot(a, b, out=out))
    return Speeds(2.0 * source.nbytes / copied, 2.0 * side**3 / multiplied)


def best_seconds(action: Callable[[], object], runs: int = 7) -> float:
    """Of the fastest of some runs, the first one left out: what the device can do, whatever disturbed the others."""
    action()
    taken = []
    for _ in range(runs):
        started = time.perf_counter()
        action()
        taken.append(time.perf_counter() - started)
    return min(taken)
