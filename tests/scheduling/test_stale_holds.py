"""A hold that is not a live one of the pool is refused by every call, before anything changes."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest

from luce.scheduling.block_pool import BlockPool
from luce.scheduling.holds import Hold, StaleHoldError
from tests.scheduling.pool_probe import digests, filled, refused

USES: dict[str, Callable[[BlockPool, Hold, Hold], object]] = {
    "extend": lambda pool, hold, _: pool.extend(hold, 1),
    "extend by nothing": lambda pool, hold, _: pool.extend(hold, 0),
    "extend after another": lambda pool, hold, live: pool.extend_all([(live, 1), (hold, 1)]),
    "share": lambda pool, hold, _: pool.share(hold, 1),
    "truncate": lambda pool, hold, _: pool.truncate(hold, 0),
    "release": lambda pool, hold, _: pool.release(hold),
    "fill": lambda pool, hold, _: pool.fill(hold, 0, []),
    "fill after another": lambda pool, hold, live: pool.fill_all([(live, 0, []), (hold, 0, [])]),
    "begin_save": lambda pool, hold, _: pool.begin_save(hold),
    "reserve": lambda pool, hold, _: pool.reserve(hold, 2),
    "unreserve": lambda pool, hold, _: pool.unreserve(hold),
    "gain": lambda pool, hold, _: pool.gain(hold),
}


def stale(pool: BlockPool, hold: Hold, use: str, match: str) -> None:
    live = pool.allocate(0)
    with refused(pool, StaleHoldError, match):
        USES[use](pool, hold, live)


@pytest.mark.parametrize("use", USES)
def test_a_hold_that_was_given_back_is_stale(use: str) -> None:
    """Also where its blocks live on in other hands: a second release would take another's reference."""
    pool = BlockPool(6, 16)
    hold = filled(pool, "ab", "slot 2")
    entry = pool.share(hold, 2)
    pool.release(hold)
    stale(pool, hold, use, r"hold 0 \(slot 2\) was given back, or is not of this pool: a stale handle")
    pool.release(entry)
    stale(pool, hold, use, "a stale handle")


@pytest.mark.parametrize("use", USES)
def test_a_hold_that_is_being_saved_cannot_be_used(use: str) -> None:
    """Also where all its blocks are filled, and none is in the state `saving`."""
    pool = BlockPool(6, 16)
    hold = filled(pool, "ab")
    pool.begin_save(hold)
    assert pool.saving == 0
    stale(pool, hold, use, "hold 0 is being saved")
    pool.saved(hold)
    stale(pool, hold, use, "a stale handle")


@pytest.mark.parametrize("use", USES)
def test_a_hold_of_another_pool_or_a_copy_is_stale(use: str) -> None:
    pool, other = BlockPool(6, 16), BlockPool(6, 16)
    hold, strange = filled(pool, "ab"), filled(other, "ab")
    assert hold.serial == strange.serial
    stale(pool, strange, use, "not of this pool")
    stale(pool, copy.copy(hold), use, "not of this pool")


@pytest.mark.parametrize("use", USES)
def test_a_generation_that_moved_on_is_found(use: str) -> None:
    """A defect of the pool itself: blocks are given up under a hold. The tags say so at its next use."""
    pool = BlockPool(6, 16)
    hold = pool.allocate(3)
    pool._blocks.let_go("release", hold.ids[1:2])
    assert pool.allocate(1).table == (1,)
    stale(pool, hold, use, "hold 0 has block 1 of generation 0, which is of generation 1 now: a stale handle")
    with pytest.raises(AssertionError, match="hold 0 has block 1, whose content was given up since"):
        pool.check_integrity()


def test_generations_of_what_is_cached_stay() -> None:
    pool = BlockPool(4, 16)
    hold = filled(pool, "ab")
    pool.release(hold)
    again = pool.adopt(digests("ab"))
    assert again.generations.tolist() == hold.generations.tolist() == [0, 0]
    pool.release(again)
    pool.evict(1)
    fresh = pool.allocate(4)
    assert fresh.generations.tolist() == [1, 1, 0, 0]
