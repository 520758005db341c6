"""Requests of a trace as people see them: which phase each is in, and since when."""

from __future__ import annotations

import functools
from typing import Final

from luce.actors.tallies import PHASES
from luce.trace.events import EventRecord

__all__ = ["ENDS", "phase_in", "phase_of"]

ENDS: Final = ("finished", "failed", "cancelled")
"""Final states of `request.scxml`."""
_KNOWN = frozenset((*PHASES, *ENDS))


@functools.lru_cache(maxsize=4096)
def phase_in(states: tuple[str, ...]) -> str:
    """The one of ``states`` that is one of :data:`PHASES` or of :data:`ENDS`."""
    return next((state for state in states if state in _KNOWN), states[0] if states else "?")


def phase_of(record: EventRecord) -> str:
    """The phase that a request's record says it is in."""
    return phase_in(record.configuration)
