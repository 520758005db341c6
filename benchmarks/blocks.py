"""What the block pool costs, in a small one and a large one: growth of 64 slots, requests that come and go.

Both pools are worn: every free block is a run of its own, so nothing gains from neighbours.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from benchmarks.measure import Result, quiet_median, seconds_of
from luce.scheduling.block_pool import BlockPool
from luce.scheduling.holds import Hold

__all__ = ["main"]

SIZES = (2_000, 100_000)
SLOTS = 64
PROMPT = 32
GROWTH = (SIZES[0] - SLOTS) // SLOTS
"""Blocks by which every slot grows before all start again."""
GROW_GOAL_US = 5.0
TIMED = 0.1


def _worn(num_blocks: int) -> BlockPool:
    """All free, after slots that grew in turns gave everything back, the odd slots first."""
    pool = BlockPool(num_blocks, 16)
    slots = [pool.allocate(0) for _ in range(SLOTS)]
    for _ in range(num_blocks // SLOTS):
        pool.extend_all([(slot, 1) for slot in slots])
    for slot in (*slots[1::2], *slots[::2]):
        pool.release(slot)
    assert pool.free == num_blocks
    return pool


def _seconds_of_growth(pool: BlockPool, grow: Callable[[list[Hold]], None]) -> float:
    """CPU seconds of one slot's growth by one block, when all slots grow in every step."""
    taken, steps = 0.0, 0
    while taken < TIMED:
        slots = [pool.allocate(1) for _ in range(SLOTS)]
        started = time.thread_time()
        for _ in range(GROWTH):
            grow(slots)
        taken += time.thread_time() - started
        steps += GROWTH
        for slot in slots:
            pool.release(slot)
    return taken / steps / SLOTS


def _together(pool: BlockPool, slots: list[Hold]) -> None:
    pool.extend_all([(slot, 1) for slot in slots])


def _one_by_one(pool: BlockPool, slots: list[Hold]) -> None:
    for slot in slots:
        pool.extend(slot, 1)


def _come_and_go(pool: BlockPool) -> None:
    pool.release(pool.allocate(PROMPT))


def _hit(pool: BlockPool, digests: list[bytes]) -> None:
    pool.release(pool.adopt(digests[: len(pool.lookup(digests))]))


def _cached(pool: BlockPool) -> list[bytes]:
    """A prompt that is in the cache from here on."""
    digests = [number.to_bytes(32) for number in range(1, PROMPT + 1)]
    hold = pool.allocate(PROMPT)
    pool.fill(hold, 0, digests)
    pool.release(hold)
    return digests


def main() -> list[Result]:
    """The table of figures, in microseconds."""
    results = []
    for size in SIZES:
        pool = _worn(size)
        digests = _cached(pool)
        cases: list[tuple[str, Callable[[], float], float | None]] = [
            (
                "64 slots grow together, a slot",
                partial(_seconds_of_growth, pool, partial(_together, pool)),
                GROW_GOAL_US,
            ),
            (
                "64 slots grow one by one, a slot",
                partial(_seconds_of_growth, pool, partial(_one_by_one, pool)),
                None,
            ),
            ("32 blocks allocated and released", partial(seconds_of, partial(_come_and_go, pool)), None),
            (
                "32 cached blocks found, adopted, released",
                partial(seconds_of, partial(_hit, pool, digests)),
                None,
            ),
        ]
        results += [
            quiet_median(f"{what}, {size:,} blocks", "us", lambda run=run: 1e6 * run(), goal=goal)  # type: ignore[misc]
            for what, run, goal in cases
        ]
        pool.check_integrity([])
    return results
