"""What :mod:`luce.composition.verdict` says, as failures of tests."""

from __future__ import annotations

from luce.charts.explorer import Exploration, explore
from luce.composition.options import Options
from luce.composition.system import State, System
from luce.composition.verdict import MOST_STATES, judge

__all__ = ["check", "run"]


def run(options: Options) -> tuple[System, Exploration[State]]:
    """No rule is broken on the way. Raises AssertionError with the shortest way to the first that is."""
    system = System(options)
    found = explore(system, limit=MOST_STATES)
    assert not found.faults, str(found.faults[0])
    assert found.complete
    return system, found


def check(options: Options) -> tuple[System, Exploration[State]]:
    """And nothing is wrong with the whole."""
    verdict = judge(options)
    assert verdict.fault is None, str(verdict.fault)
    assert verdict.found.complete
    return verdict.system, verdict.found
