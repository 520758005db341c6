"""Requests of a trace as people see them: which phase each is in, and since when."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from luce.actors.tallies import PHASES
from luce.trace.events import EventRecord

__all__ = ["ENDS", "phase_of"]

ENDS: Final = ("finished", "failed", "cancelled")
"""Final states of `request.scxml`."""
_KNOWN = frozenset((*PHASES, *ENDS))


def _found(states: tuple[str, ...]) -> Iterator[str]:
    return (state for state in states if state in _KNOWN)


def phase_of(record: EventRecord) -> str:
    """The state that a request's record says it is in: one of :data:`PHASES` or of :data:`ENDS`."""
    return next(_found(record.configuration), record.configuration[0] if record.configuration else "?")
