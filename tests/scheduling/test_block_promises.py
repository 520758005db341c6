"""Reservations: what is promised to a hold is there when it grows, and nobody else gets it."""

from __future__ import annotations

from luce.scheduling.block_pool import BlockPool
from luce.scheduling.holds import OutOfBlocksError
from tests.scheduling.pool_probe import digests, filled, refused


def test_a_reservation_is_kept_for_its_hold() -> None:
    pool = BlockPool(6, 16)
    slot = pool.allocate(1)
    pool.reserve(slot, 4)
    assert (pool.free, pool.available, slot.owed) == (5, 2, 3)
    other = pool.allocate(2)
    with refused(pool, OutOfBlocksError):
        pool.extend(other, 1)
    with refused(pool, OutOfBlocksError, "a reservation"):
        pool.reserve(other, 3)
    with refused(pool, OutOfBlocksError):
        pool.reserve(slot, 5)
    pool.extend(slot, 2)
    assert (pool.available, slot.owed) == (0, 1)
    pool.extend_all([(slot, 1), (other, 0)])
    with refused(pool, OutOfBlocksError):
        pool.extend(slot, 1)
    pool.release(other)
    pool.extend(slot, 1)
    assert (len(slot), slot.owed, pool.available) == (5, 0, 1)
    pool.check_integrity([slot])


def test_a_reservation_can_be_changed_and_taken_back() -> None:
    pool = BlockPool(6, 16)
    slot = pool.allocate(2)
    pool.reserve(slot, 6)
    pool.reserve(slot, 3)
    assert pool.available == 3
    pool.reserve(slot, 1)
    assert pool.available == 4
    pool.reserve(slot, 5)
    pool.unreserve(slot)
    assert (pool.available, slot.reserved) == (4, 0)
    with refused(pool, ValueError, "-1 blocks"):
        pool.reserve(slot, -1)
    pool.reserve(slot, 6)
    pool.release(slot)
    assert pool.available == 6


def test_the_cache_backs_promises_but_is_not_adopted_away() -> None:
    pool = BlockPool(4, 16)
    pool.release(filled(pool, "abc"))
    slot = pool.allocate(0)
    pool.reserve(slot, 3)
    assert (pool.free, pool.cached, pool.available) == (1, 3, 1)
    with refused(
        pool, OutOfBlocksError, "no room for a cached prefix: 2 KV blocks are needed, 1 are available"
    ):
        pool.adopt(digests("ab"))
    entry = pool.adopt(digests("a"))
    pool.extend(slot, 3)
    assert slot.table == (1, 2, 3)
    pool.check_integrity([slot, entry])


def test_cutting_off_shared_blocks_must_leave_the_promise_good() -> None:
    pool = BlockPool(4, 16)
    slot = filled(pool, "abc")
    entry = pool.share(slot, 3)
    pool.reserve(slot, 4)
    assert pool.available == 0
    with refused(pool, OutOfBlocksError, "the reservation of what is cut off"):
        pool.truncate(slot, 2)
    pool.release(entry)
    pool.truncate(slot, 1)
    assert (slot.owed, pool.free, pool.cached, pool.available) == (3, 1, 2, 0)
    pool.extend(slot, 3)
    pool.check_integrity([slot])


def test_gain_is_what_a_release_makes_available() -> None:
    pool = BlockPool(8, 16)
    slot = filled(pool, "abc")
    entry = pool.share(slot, 2)
    pool.extend(slot, 1)
    pool.reserve(slot, 6)
    assert (pool.gain(slot), pool.gain(entry)) == (4, 0)
    before = pool.available
    gain = pool.gain(slot)
    pool.release(slot)
    assert pool.available == before + gain
