"""The one task that owns every delay: what is stopped costs nothing, what is set fires once, in order."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio
from trio.testing import MockClock

from luce.actors.timers import Timers

pytestmark = pytest.mark.trio


def nothing() -> None:
    raise AssertionError("it was stopped")


async def test_stopped_timers_are_not_kept_until_they_would_have_fired() -> None:
    """A request with a day's limit that is answered in a second leaves nothing behind for a day."""
    timers = Timers()
    timers.set("stays", "deadline.expired", 1e5, nothing)
    for number in range(10_000):
        timers.set(number, "deadline.expired", 1e6 - number, nothing)
        timers.clear(number, "deadline.expired")
    assert len(timers) == 1
    assert len(timers._heap) < 200


async def test_moved_timers_are_not_kept_either() -> None:
    timers = Timers()
    for number in range(10_000):
        timers.set("one", "client.timeout", 1e6 - number, nothing)
    assert len(timers) == 1
    assert len(timers._heap) < 200


async def test_among_many_that_are_stopped_the_others_fire_in_order(autojump_clock: MockClock) -> None:
    timers, fired = Timers(), list[int]()

    def firing(number: int) -> Callable[[], None]:
        return lambda: fired.append(number)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(timers.run)
        await trio.testing.wait_all_tasks_blocked()
        for number in range(1000):
            timers.set(number, "e", 1000 - number, nothing if number % 3 else firing(number))
        for number in range(1000):
            if number % 3:
                timers.clear(number, "e")
        await trio.sleep(2000)
        nursery.cancel_scope.cancel()
    assert fired == sorted((n for n in range(1000) if n % 3 == 0), reverse=True)
    assert len(timers) == 0 and not timers._heap
