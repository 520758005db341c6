"""How luce is timed: medians of five quiet runs, with a fixed pure-Python loop beside every number.

The loop tells machines and moments apart: a figure that moved together with it is the machine's, not luce's.
Single-threaded work is timed in CPU seconds, so that other processes on the machine do not count. What several
processes do together is timed by the wall, and how much of the machine others took meanwhile is counted.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import attrs
import psutil  # type: ignore[import-untyped]

__all__ = ["Attempts", "Result", "python_loop", "quiet_median", "seconds_of"]

RUNS = 5
ATTEMPTS = 15
QUIET = 1.10
"""A run counts as quiet while the loops around it take at most this much longer than the fastest loop seen."""
QUIET_CORES = 0.10
"""…and, timed by the wall, while other processes take at most this many cores."""
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
    """How many of the runs were quiet. Fewer than ``runs``: measure again on an idle machine."""
    goal: float | None = None
    """What the roadmap asks for, in the same unit."""
    runs: int = RUNS
    others: float | None = None
    """Cores that other processes took during the runs; None where CPU seconds were counted."""


@attrs.frozen
class _Run:
    noise: float
    """Of loop and others, as the worse of their shares of what counts as quiet; at most 1 is quiet."""
    value: float
    loop: float
    others: float


def python_loop() -> float:
    """CPU seconds of a fixed amount of pure-Python integer work."""
    started = time.thread_time()
    value = 1
    for _ in range(LOOP_STEPS):
        value = (value * 1103515245 + 12345) & 0x7FFFFFFF
    return time.thread_time() - started


class Attempts:
    """The runs of one figure: as many as it takes until enough of them were quiet, three times as many at most.

    Args:
        runs: quiet runs to be had.
        wall: they are timed by the wall, so what others do on the machine disturbs them as well.
    """

    def __init__(self, runs: int = RUNS, *, wall: bool = False) -> None:
        self._runs = runs
        self._wall = wall
        self._made: list[_Run] = []
        self._before = python_loop()
        self._elsewhere = self._started = 0.0

    @property
    def wanted(self) -> bool:
        """Is one more run to be made?"""
        quiet = sum(one.noise <= 1 for one in self._made)
        return quiet < self._runs and len(self._made) < ATTEMPTS // RUNS * self._runs

    def start(self) -> None:
        """A run begins."""
        self._elsewhere, self._started = _elsewhere(), time.perf_counter()

    def stop(self, value: float) -> None:
        """The run that :meth:`start` began is over and gave ``value``."""
        global _fastest_loop
        taken = time.perf_counter() - self._started
        others = (_elsewhere() - self._elsewhere) / taken if self._wall else 0.0
        after = python_loop()
        self._made.append(_Run(0.0, value, max(self._before, after), max(others, 0.0)))
        _fastest_loop = min(_fastest_loop, self._before, after)
        self._before = after
        self._made = [attrs.evolve(one, noise=_noise(one)) for one in self._made]

    def result(self, name: str, unit: str, goal: float | None = None) -> Result:
        """The median of the quiet runs, or of the least disturbed ones, of which it says how many were quiet."""
        best = sorted(self._made, key=lambda one: one.noise)[: self._runs]
        return Result(
            name=name,
            value=statistics.median(one.value for one in best),
            unit=unit,
            loop_ms=1000 * statistics.median(one.loop for one in best),
            quiet_runs=sum(one.noise <= 1 for one in best),
            goal=goal,
            runs=self._runs,
            others=statistics.median(one.others for one in best) if self._wall else None,
        )


def quiet_median(
    name: str,
    unit: str,
    run: Callable[[], float],
    *,
    goal: float | None = None,
    wall: bool = False,
    runs: int = RUNS,
) -> Result:
    """Median of ``run()`` over ``runs`` quiet runs (:class:`Attempts`); the loop is timed before and after each."""
    attempts = Attempts(runs, wall=wall)
    while attempts.wanted:
        attempts.start()
        attempts.stop(run())
    return attempts.result(name, unit, goal)


def _noise(run: _Run) -> float:
    return max(run.loop / (QUIET * _fastest_loop), run.others / QUIET_CORES)


def _elsewhere() -> float:
    """CPU seconds that processes other than this one and its children have taken since the machine started."""
    machine = psutil.cpu_times()
    busy = sum(getattr(machine, name, 0.0) for name in ("user", "nice", "system", "irq", "softirq", "steal"))
    mine = psutil.Process()
    times = [mine.cpu_times(), *(child.cpu_times() for child in mine.children(recursive=True))]
    ours = sum(one.user + one.system + one.children_user + one.children_system for one in times)
    return float(busy - ours)


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
