"""Explores one system completely and says what is wrong with it, if anything is."""

from __future__ import annotations

import attrs

from luce.charts.explorer import Exploration, Fault, explore
from luce.composition.options import Options
from luce.composition.system import State, System

__all__ = ["MOST_STATES", "Verdict", "judge", "way_to"]

MOST_STATES = 1_000_000


@attrs.frozen(eq=False)
class Verdict:
    """Of one system."""

    system: System
    found: Exploration[State]
    fault: Fault | None
    """A broken rule, a deadlock or an end out of reach, with a shortest way there. None where not all was visited
    (``found.complete``) and nothing came up."""


def judge(options: Options, limit: int = MOST_STATES) -> Verdict:
    """No rule is broken, there is no deadlock, the end is always in reach, mailboxes are short.

    Args:
        limit: states after which it is given up.
    """
    system = System(options)
    found = explore(system, limit=limit)
    fault = found.faults[0] if found.faults else _of_the_whole(system, found) if found.complete else None
    return Verdict(system, found, fault)


def _of_the_whole(system: System, found: Exploration[State]) -> Fault | None:
    options = system.options
    if stuck := found.stuck(system.done):
        return Fault("a deadlock", found.path(stuck[0]))
    if lost := found.cut_off(system.done):
        return Fault("the end is out of reach", found.path(lost[0]))
    if options.drains:
        for state in found.cut_off(system.stopped):
            if system.draining(state):
                return Fault("the server does not stop", found.path(state))
    if system.longest_mailbox > (most := _most_messages(options)):
        return Fault(f"{system.longest_mailbox} messages in a mailbox, more than {most}", ())
    return None


def _most_messages(options: Options) -> int:
    """I13, beside one message for each image: a step's results (chunk.done and token); what ends a request early adds
    `retired` and `dropped` behind them; a client that stalls, a limit that runs out, a computed mask add theirs."""
    early = options.cancels or options.drains or options.step_failures or options.stalls or options.deadlines
    most = 2 + (2 if early else 0) + options.stalls + bool(options.deadlines)
    return most + any("c" in shape.masks for shape in options.shapes)


def way_to(verdict: Verdict, chart: str, state: str) -> Fault | None:
    """A shortest way to where a machine of a chart is in a state, if one was found."""
    for found in verdict.found.numbers:
        for machine, here in verdict.system.where(found):
            if here.chart.name == chart and state in here.active:
                return Fault(f"{machine} is in {state}", verdict.found.path(found))
    return None
