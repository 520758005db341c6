"""The place of a request that waits for a slot."""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeVar

__all__ = ["enqueue"]

T = TypeVar("T")


def enqueue(waiting: OrderedDict[int, T], order: int, request: T) -> None:
    """Add a request, by its arrival number, to those that wait in this order.

    Nearly all come in order. Only a choice that let another one compute their prompt comes later, and goes before
    whoever arrived after it: what it lost are the slots that were given out meanwhile, for which it had no use.
    """
    later = (
        [other for other in waiting if other > order] if waiting and next(reversed(waiting)) > order else ()
    )
    waiting[order] = request
    for other in later:
        waiting.move_to_end(other)
