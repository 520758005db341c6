"""Until when the state after a row can be captured: rows that follow it change it at the next multiple of 64."""

from __future__ import annotations

from luce.engines.seam import MAX_VOID_ROWS

__all__ = ["may_be_late"]


def may_be_late(position: int, committed: int, rows: int) -> bool:
    """Is the state after ``position`` rows still there, of a slot that is committed at ``committed``, at or past it,
    and has ``rows``? It is while both places lie between the same multiples of :data:`MAX_VOID_ROWS`, and no more rows
    than that follow the position."""
    same = position // MAX_VOID_ROWS == committed // MAX_VOID_ROWS
    return same and 1 <= position <= committed and rows - position <= MAX_VOID_ROWS
