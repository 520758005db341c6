"""The house that the scheduler's benchmark times: it really decodes, with what must not matter beside it."""

import pytest
import trio

from benchmarks.scheduler import STEPS, house


@pytest.mark.parametrize("depth", [1, 2])
def test_every_slot_decodes_in_every_step(depth: int) -> None:
    async def run() -> None:
        async with house(4, depth, queued=5, cached=3) as (engine, loop):
            steps, lanes = loop.metrics.steps, loop.metrics.lanes
            assert await engine.seconds_of_step(STEPS[4]) > 0
            assert loop.metrics.steps - steps >= STEPS[4]
            assert loop.metrics.lanes - lanes == 4 * (loop.metrics.steps - steps)
            assert len(loop.waiting) == 5

    trio.run(run)
