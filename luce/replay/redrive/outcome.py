"""What comes of leading actors along a trace."""

from __future__ import annotations

import attrs

from luce.trace.reader import Item

__all__ = ["EndError", "PartError", "Parted", "Redrive"]


@attrs.frozen
class Parted:
    """Where this run and the trace part."""

    why: str
    expected: Item | None
    """None: the trace has no more."""
    found: str | None
    """What the same machine did instead, if anything."""


@attrs.define
class Redrive:
    records: int = 0
    plans: int = 0
    launches: int = 0
    parted: Parted | None = None


class PartError(Exception):
    """The run cannot go on along the trace."""


class EndError(Exception):
    """The trace breaks off before it says what would be needed for the last of its records."""
