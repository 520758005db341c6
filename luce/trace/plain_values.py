"""What a trace may hold where its schema leaves open what stands there: trees of plain values, not too deep."""

from __future__ import annotations

from typing import Final

__all__ = ["MOST_DEPTH", "check_depth"]

MOST_DEPTH: Final = 200
"""Lists and maps in each other. Whoever shows or writes them recurses; a request's body may nest fewer."""


def check_depth(value: object) -> None:
    """Raises ValueError where ``value`` nests deeper than :data:`MOST_DEPTH`."""
    level = [value]
    for _ in range(MOST_DEPTH + 1):
        level = [
            one
            for holder in level
            if isinstance(holder, dict | list | tuple)
            for one in (holder.values() if isinstance(holder, dict) else holder)
        ]
        if not level:
            return
    raise ValueError(f"a value nests deeper than {MOST_DEPTH} levels")
