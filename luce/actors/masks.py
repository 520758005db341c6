"""What the next tokens of constrained answers may be, computed on worker threads, so that the step loop goes on.

A request that wants its mask says so and takes no rows until its `mask.ready`. Requests share nothing here but the
threads: a grammar that takes long holds up its own answer, and others only while all threads are taken by such.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import trio

from luce.actors.messages import MaskFailed, Plain
from luce.errors import LuceError

if TYPE_CHECKING:
    from luce.actors.request import Request

__all__ = ["Compute", "MaskWorkers", "on_worker_threads"]

log = logging.getLogger("luce.masks")

Compute = Callable[[Callable[[], None]], Awaitable[None]]
"""Runs a function that takes its time, and returns when it is done. Raises what it raises."""

THREADS = 4
"""Masks that are computed at once."""


def on_worker_threads(threads: int = THREADS) -> Compute:
    limiter = trio.CapacityLimiter(threads)

    async def run(function: Callable[[], None]) -> None:
        await trio.to_thread.run_sync(function, limiter=limiter, abandon_on_cancel=True)

    return run


class MaskWorkers:
    """Args:
    compute: where masks are computed; simulations pass one that takes its time on trio's clock.
    """

    def __init__(self, compute: Compute | None = None) -> None:
        self._compute = compute or on_worker_threads()
        self._nursery: trio.Nursery | None = None

    async def run(self) -> None:
        """Until cancelled; what is being computed then is abandoned."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            await trio.sleep_forever()

    def want(self, request: Request) -> None:
        """Compute the next mask of this request and tell it."""
        assert self._nursery is not None, "the workers do not run"
        self._nursery.start_soon(self._answer, request)

    async def _answer(self, request: Request) -> None:
        constraint = request.constraint
        assert constraint is not None
        try:
            await self._compute(constraint.compute)
        except LuceError as error:
            request.mailbox.put(MaskFailed(error))
        except Exception as error:
            log.exception("request %s: its mask cannot be computed", request.submission.id)
            request.mailbox.put(MaskFailed(LuceError(f"internal error: {type(error).__name__}")))
        else:
            request.mailbox.put(Plain("mask.ready"))
