"""How luce is timed: medians of five quiet runs, with a fixed pure-Python loop beside every number.

The loop tells machines and moments apart: a figure that moved together with it is the machine's, not luce's.
Single-threaded work is timed in CPU seconds of its thread, so that other processes on the machine do not count.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import attrs

__all__ = ["Result", "python_loop", "quiet_median", "seconds_of"]

RUNS = 5
ATTEMPTS = 15
QUIET = 1.10
"""A run counts as quiet while the loops around it take at most this much longer than the fastest loop seen."""
LOOP_STEPS = 400_000

_fastest_loop = float("inf")


@attrs.frozen
class Result:
    """One measured figure."""

    name: str
    value: float
    unit: str
    loop_ms: float
    """Milliseconds of :func:`python_loop` around the runs."""
    quiet_runs: int = RUNS
    """How many of the five runs were quiet. Fewer than five: measure again on an idle machine."""
    goal: float | None = None
    """What the roadmap asks for, in the same unit."""


def python_loop() -> float:
    """CPU seconds of a fixed amount of pure-Python integer work."""
    started = time.thread_time()
    value = 1
    for _ in range(LOOP_STEPS):
        value = (value * 1103515245 + 12345) & 0x7FFFFFFF
    return time.thread_time() - started


def quiet_median(name: str, unit: str, run: Callable[[], float], *, goal: float | None = None) -> Result:
    """Median of ``run()`` over five quiet runs; the loop is timed before and after each.

    Disturbed runs are repeated, fifteen runs in all at most; then the least disturbed five count, and the result
    says how many of them were quiet.
    """
    global _fastest_loop
    runs: list[tuple[float, float]] = []
    before = python_loop()
    while len(runs) < ATTEMPTS:
        value = run()
        after = python_loop()
        runs.append((max(before, after), value))
        _fastest_loop = min(_fastest_loop, before, after)
        before = after
        if sum(loop <= QUIET * _fastest_loop for loop, _ in runs) >= RUNS:
            break
    best = sorted(runs)[:RUNS]
    return Result(
        name=name,
        value=statistics.median(value for _, value in best),
        unit=unit,
        loop_ms=1000 * statistics.median(loop for loop, _ in best),
        quiet_runs=sum(loop <= QUIET * _fastest_loop for loop, _ in best),
        goal=goal,
    )


def seconds_of(action: Callable[[], object], at_least: float = 0.1) -> float:
    """CPU seconds of one call of ``action``, from as many calls as fill ``at_least`` seconds."""
    action()
    calls = 1
    while True:
        started = time.thread_time()
        for _ in range(calls):
            action()
        taken = time.thread_time() - started
        if taken >= at_least:
            return taken / calls
        calls = max(calls + 1, int(calls * at_least / max(taken, 1e-9) * 1.2))
