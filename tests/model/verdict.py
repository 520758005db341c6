"""Explores one system completely and says what is wrong with it, if anything is."""

from __future__ import annotations

from luce.charts.explorer import Exploration, explore
from luce.composition.options import Options
from luce.composition.system import State, System

__all__ = ["check", "run"]


def run(options: Options) -> tuple[System, Exploration[State]]:
    """No rule is broken on the way. Raises AssertionError with the shortest way to the first that is."""
    system = System(options)
    found = explore(system, limit=1_000_000)
    assert not found.faults, str(found.faults[0])
    assert found.complete
    return system, found


def check(options: Options) -> tuple[System, Exploration[State]]:
    """And nothing is wrong with the whole: no deadlock, the end always in reach, mailboxes short."""
    system, found = run(options)
    deadlocks = found.stuck(system.done)
    assert not deadlocks, f"deadlock after {found.path(deadlocks[0])}"
    lost = found.cut_off(system.done)
    assert not lost, f"the end is out of reach after {found.path(lost[0])}"
    if options.drains:
        open_for_ever = [s for s in found.cut_off(system.stopped) if system.draining(s)]
        assert not open_for_ever, f"does not stop after {found.path(open_for_ever[0])}"
    # I13, beside one message for each image: a step's results (chunk.done and token); what ends a request early adds
    # `retired` and `dropped` behind them; a client that stalls, a limit that runs out, a computed mask add theirs.
    early = options.cancels or options.drains or options.step_failures or options.stalls or options.deadlines
    most = 2 + (2 if early else 0) + options.stalls + bool(options.deadlines)
    most += any("c" in shape.masks for shape in options.shapes)
    assert system.longest_mailbox <= most, f"{system.longest_mailbox} messages in a mailbox"
    return system, found
