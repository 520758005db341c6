"""One run of trio in virtual time whose order of tasks follows from a seed.

trio turns each batch of runnable tasks round at random, so that nobody relies on their order. Two private names of it
make that repeatable; pytest-trio and Hypothesis use the same two.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import trio
import trio.testing

__all__ = ["run_seeded"]

T = TypeVar("T")


def run_seeded(seed: int, main: Callable[[], Awaitable[T]]) -> T:
    """``main`` under a clock that starts at 0 and jumps whenever every task waits.

    Threads and sockets are no part of this: work that they do takes no virtual time, and comes when it comes.
    """
    internals: Any = trio._core._run
    order, before = internals._r, internals._ALLOW_DETERMINISTIC_SCHEDULING
    state = order.getstate()
    internals._ALLOW_DETERMINISTIC_SCHEDULING = True
    order.seed(seed)
    try:
        return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    finally:
        internals._ALLOW_DETERMINISTIC_SCHEDULING = before
        order.setstate(state)
