"""The block pool call by call: what is had, kept, promised and refused."""

from __future__ import annotations

import numpy as np
import pytest

from luce.errors import CapacityError, IllegalEvent
from luce.scheduling.block_pool import BlockPool, blocks_for
from luce.scheduling.block_states import RangeStep
from luce.scheduling.holds import OutOfBlocksError, StaleHoldError
from tests.scheduling.pool_probe import digests, filled, refused


def counts(pool: BlockPool) -> tuple[int, int, int, int]:
    assert pool.free + pool.held + pool.cached + pool.saving == pool.num_blocks
    return pool.free, pool.held, pool.cached, pool.saving


@pytest.mark.parametrize("block_size", [16, 64, 128])
def test_blocks_for_rows(block_size: int) -> None:
    assert BlockPool(4, block_size).block_size == block_size
    for blocks in range(4):
        assert blocks_for(blocks * block_size, block_size) == blocks
        assert blocks_for(blocks * block_size + 1, block_size) == blocks + 1


def test_a_pool_has_blocks() -> None:
    for blocks, size in ((0, 16), (4, 0), (-1, 16)):
        with pytest.raises(ValueError, match="a pool needs blocks"):
            BlockPool(blocks, size)


# Holding


def test_lowest_free_block_first() -> None:
    pool = BlockPool(8, 16)
    a, b = pool.allocate(2), pool.allocate(3, "slot 1")
    assert (a.table, b.table) == ((0, 1), (2, 3, 4))
    assert (a.owner, b.owner) == ("", "slot 1")
    pool.release(a)
    pool.extend(b, 3)
    assert b.table == (2, 3, 4, 0, 1, 5)
    assert b.ids.dtype == np.intp
    assert len(b) == 6
    assert counts(pool) == (2, 6, 0, 0)
    pool.check_integrity([b])


def test_what_was_read_of_a_hold_stays_as_it_was() -> None:
    """A plan in flight keeps the table that it was launched with."""
    pool = BlockPool(8, 16)
    hold = pool.allocate(3)
    ids, table = hold.ids, hold.table
    pool.truncate(hold, 1)
    other = pool.allocate(1)
    pool.extend(hold, 2)
    assert (other.table, hold.table) == ((1,), (0, 2, 3))
    assert ids.tolist() == list(table) == [0, 1, 2]
    for array in (ids, hold.ids, hold.generations):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 5


def test_several_holds_grow_together_or_not_at_all() -> None:
    pool = BlockPool(6, 16)
    a, b, c = (pool.allocate(1) for _ in range(3))
    with refused(pool, OutOfBlocksError, "growth: 4 KV blocks are needed, 3 are available"):
        pool.extend_all([(a, 1), (b, 2), (c, 1)])
    pool.extend_all([(c, 1), (a, 2), (b, 0)])
    assert [hold.table for hold in (a, b, c)] == [(0, 4, 5), (1,), (2, 3)]
    with refused(pool, ValueError, "twice"):
        pool.extend_all([(a, 0), (b, 0), (a, 0)])
    pool.extend_all([])
    pool.check_integrity([a, b, c])


def test_too_few_blocks() -> None:
    pool = BlockPool(4, 16)
    hold = pool.allocate(3)
    with refused(pool, OutOfBlocksError, "no room for an allocation") as found:
        pool.allocate(2)
    assert isinstance(found.value, CapacityError)
    assert isinstance(found.value, OutOfBlocksError)
    assert (found.value.need, found.value.available) == (2, 1)
    with refused(pool, ValueError, "-1 blocks"):
        pool.allocate(-1)
    with refused(pool, OutOfBlocksError, "no room for growth: 2 KV blocks are needed, 1 are available"):
        pool.extend(hold, 2)


def test_a_shared_block_lives_as_long_as_its_last_hold() -> None:
    pool = BlockPool(4, 16)
    slot = filled(pool, "abc")
    entry = pool.share(slot, 2, "prefix")
    assert entry.table == (0, 1)
    assert [pool.refs(block) for block in range(4)] == [2, 2, 1, 0]
    pool.release(slot)
    assert [pool.state(block) for block in range(4)] == ["held_hashed", "held_hashed", "cached", "free"]
    pool.extend(entry, 1)
    assert entry.table == (0, 1, 3)
    pool.check_integrity([entry])
    pool.release(entry)
    assert counts(pool) == (1, 0, 3, 0)


def test_a_block_that_is_still_written_is_not_shared() -> None:
    pool = BlockPool(4, 16)
    hold = pool.allocate(3)
    pool.fill(hold, 0, digests("a"))
    with refused(pool, IllegalEvent, "block 1 in held, held_open: no transition for event 'share'"):
        pool.share(hold, 2)
    assert pool.share(hold, 0).table == ()
    assert pool.share(hold, 1).table == (0,)


def test_truncate_gives_back_the_end() -> None:
    pool = BlockPool(6, 16)
    hold = filled(pool, "abcd")
    entry = pool.share(hold, 3)
    pool.truncate(hold, 1)
    assert hold.table == (0,)
    assert [pool.state(block) for block in range(5)] == [*["held_hashed"] * 3, "cached", "free"]
    pool.truncate(hold, 1)
    for count in (-1, 2):
        with refused(pool, ValueError, f"hold 0 has 1 blocks, not {count}"):
            pool.truncate(hold, count)
        with refused(pool, ValueError, f"has 1 blocks, not {count}"):
            pool.share(hold, count)
    pool.truncate(hold, 0)
    assert len(hold) == 0
    pool.check_integrity([hold, entry])


# Content


def test_open_blocks_become_free_and_filled_ones_cached() -> None:
    pool = BlockPool(4, 16)
    hold = pool.allocate(3)
    pool.fill(hold, 0, digests("ab"))
    assert pool.lookup(digests("abc")).tolist() == [0, 1]
    pool.release(hold)
    assert counts(pool) == (2, 0, 2, 0)
    assert pool.lookup(digests("abc")).tolist() == [0, 1]
    again = pool.adopt(digests("ab"), "slot 3")
    pool.extend(again, 1)
    assert again.table == (0, 1, 2)
    assert counts(pool) == (1, 3, 0, 0)
    pool.check_integrity([again])


def test_fill_is_refused_where_it_makes_no_sense() -> None:
    pool = BlockPool(6, 16)
    hold = pool.allocate(4)
    pool.fill(hold, 1, digests("b"))
    with refused(pool, IllegalEvent, "block 1 in held, held_hashed: no transition for event 'fill'"):
        pool.fill(hold, 0, digests("ab"))
    for index, text in ((3, "xy"), (-1, "x"), (5, "")):
        with refused(pool, ValueError, "hold 0 has 4 blocks"):
            pool.fill(hold, index, digests(text))
    for bad in (digests("xx"), [b"x", b""]):
        with refused(pool, ValueError, "different and not empty"):
            pool.fill(hold, 2, bad)
    assert pool.lookup(digests("x")).tolist() == []


def test_several_holds_are_filled_all_or_none() -> None:
    pool = BlockPool(6, 16)
    first, second = pool.allocate(2), pool.allocate(2)
    with refused(pool, ValueError, "a hold is to be filled twice in one call"):
        pool.fill_all([(first, 0, digests("a")), (first, 0, digests("a"))])
    with refused(pool, ValueError, "hold 1 has 2 blocks"):
        pool.fill_all([(first, 0, digests("a")), (second, 1, digests("ab"))])
    pool.fill(second, 1, digests("b"))
    with refused(pool, IllegalEvent, "block 3 in held, held_hashed: no transition for event 'fill'"):
        pool.fill_all([(first, 0, digests("a")), (second, 0, digests("ab"))])
    assert pool.lookup(digests("a")).tolist() == []
    pool.fill_all([(first, 0, digests("ac")), (second, 0, digests("a"))])
    assert pool.lookup(digests("ab")).tolist() == [0, 3], "the first of two keeps their digest"
    pool.fill_all([])
    pool.release(first)
    pool.release(second)
    assert counts(pool) == (3, 0, 3, 0)
    pool.check_integrity([])


def test_a_digest_stays_with_its_first_block() -> None:
    pool = BlockPool(8, 16)
    first, second, third = filled(pool, "ab"), filled(pool, "ab"), filled(pool, "a")
    assert pool.lookup(digests("ab")).tolist() == [0, 1]
    pool.release(second)
    assert counts(pool) == (5, 3, 0, 0), "a second copy is not kept"
    pool.release(first)
    assert pool.lookup(digests("ab")).tolist() == [0, 1]
    assert counts(pool) == (5, 1, 2, 0)
    assert pool.evict(2).tolist() == [1, 0]
    assert pool.lookup(digests("ab")).tolist() == [4], "the copy that is left takes over"
    pool.release(third)
    assert counts(pool) == (7, 0, 1, 0)
    pool.check_integrity([])


def test_a_shared_duplicate_is_not_freed() -> None:
    pool = BlockPool(8, 16)
    first, second = filled(pool, "a"), filled(pool, "a")
    entry = pool.share(second, 1)
    pool.release(second)
    assert pool.state(1) == "held_hashed"
    pool.release(first)
    pool.release(entry)
    assert [pool.state(block) for block in range(2)] == ["cached", "free"]
    pool.check_integrity([])


def test_adopt_what_was_looked_up() -> None:
    pool = BlockPool(6, 16)
    hold = filled(pool, "abc")
    for wanted, missing in (("abx", 2), ("xab", 0)):
        with refused(pool, ValueError, f"no block has digest {missing} of 3"):
            pool.adopt(digests(wanted))
    with refused(pool, ValueError, "different"):
        pool.adopt(digests("aa"))
    assert pool.adoption_cost(digests("abcx")) == 0
    pool.truncate(hold, 1)
    assert pool.adoption_cost(digests("abcx")) == 2
    before = pool.available
    entry = pool.adopt(digests("abc"))
    assert before - pool.available == 2
    assert entry.table == (0, 1, 2)
    assert pool.refs(0) == 2
    assert pool.adopt([]).table == ()
    pool.check_integrity()


def test_least_recently_used_goes_first_and_of_one_release_the_deepest() -> None:
    pool = BlockPool(9, 16)
    a, b, c = filled(pool, "abc"), filled(pool, "de"), filled(pool, "fgh")
    for hold in (b, a, c):
        pool.release(hold)
    pool.release(pool.adopt(digests("d")))
    assert pool.evict(0).tolist() == []
    assert pool.evict(1).tolist() == [4]
    assert pool.evict(3).tolist() == [2, 1, 0]
    assert pool.lookup(digests("a")).tolist() == []
    grown = pool.allocate(7)
    assert grown.table == (0, 1, 2, 4, 6, 7, 8), "two had to be evicted: h, then g"
    assert pool.lookup(digests("fgh")).tolist() == [5]
    assert pool.lookup(digests("d")).tolist() == [3]
    with refused(pool, ValueError, "3 blocks are to be evicted, 2 are cached"):
        pool.evict(3)
    pool.check_integrity([grown])


def test_blocks_are_evicted_only_where_free_ones_run_out() -> None:
    pool = BlockPool(6, 16)
    pool.release(filled(pool, "abc"))
    hold = pool.allocate(3)
    assert counts(pool) == (0, 3, 3, 0)
    pool.extend(hold, 1)
    assert hold.table == (3, 4, 5, 2)
    assert pool.lookup(digests("abc")).tolist() == [0, 1]


def test_a_duplicate_keeps_the_first_one_fresh() -> None:
    """What leads to a block must outlive it in the cache, also where another request's copy stands for it."""
    pool = BlockPool(6, 16)
    pool.release(filled(pool, "a"))
    pool.release(filled(pool, "x"))
    hold = pool.allocate(2)
    pool.fill(hold, 0, digests("ab"))
    assert hold.table == (2, 3)
    pool.release(hold)
    assert pool.lookup(digests("ab")).tolist() == [0, 3]
    assert pool.evict(3).tolist() == [1, 3, 0]


# Parking


def test_saving() -> None:
    pool = BlockPool(6, 16)
    hold = pool.allocate(4)
    pool.fill(hold, 0, digests("abc"))
    pool.reserve(hold, 6)
    entry = pool.share(hold, 1)
    pool.begin_save(hold)
    assert counts(pool) == (2, 3, 0, 1)
    assert pool.available == 2, "nothing is promised any more"
    assert [pool.state(block) for block in hold.table] == ["held_hashed"] * 3 + ["saving"]
    other = pool.adopt(digests("ab"))
    pool.check_integrity([hold, entry, other])
    pool.release(entry)
    pool.saved(hold)
    assert [pool.state(block) for block in hold.table] == ["held_hashed", "held_hashed", "cached", "free"]
    pool.check_integrity([other])
    with refused(pool, StaleHoldError, "is not being saved"):
        pool.saved(hold)
    with refused(pool, StaleHoldError, "is not being saved"):
        pool.saved(other)


def test_a_duplicate_that_was_saved_is_free() -> None:
    pool = BlockPool(4, 16)
    first, second = filled(pool, "a"), filled(pool, "a")
    pool.begin_save(second)
    pool.saved(second)
    assert counts(pool) == (3, 1, 0, 0)
    pool.check_integrity([first])


# For the engine, and the event stream


def test_changes_for_the_next_plan() -> None:
    pool = BlockPool(6, 16)
    hold, other = filled(pool, "ab"), pool.allocate(2)
    assert pool.take_changes() == ((), (0, 1, 2, 3))
    assert pool.take_changes() == ((), ())
    pool.release(hold)
    assert pool.take_changes() == ((), ()), "cached content is still somebody's"
    pool.release(pool.adopt(digests("a")))
    pool.release(other)
    short = pool.allocate(2)
    assert pool.take_changes() == ((2, 3), (2, 3)), "given up, then fresh again"
    pool.release(short)
    never_planned = pool.allocate(1)
    pool.release(never_planned)
    assert pool.take_changes() == ((2, 3), ())
    never_planned = pool.allocate(1)
    pool.release(never_planned)
    assert pool.take_changes() == ((), ())
    pool.allocate(5)
    assert pool.take_changes() == ((1,), (1, 2, 3, 4, 5))


def test_an_observer_hears_every_step_of_a_range() -> None:
    heard: list[RangeStep] = []
    pool = BlockPool(4, 16, observer=heard.append)
    hold = filled(pool, "ab")
    entry = pool.share(hold, 1)
    pool.allocate(0)
    pool.release(hold)
    pool.allocate(3)
    names = [c.states[-1] for c in pool._blocks.table.configurations]
    assert [(s.event, s.ids.tolist(), [names[byte] for byte in s.after]) for s in heard] == [
        ("alloc", [0, 1], ["held_open"] * 2),
        ("fill", [0, 1], ["held_hashed"] * 2),
        ("share", [0], ["held_hashed"]),
        ("release", [0, 1], ["held_hashed", "cached"]),
        ("evict", [1], ["free"]),
        ("alloc", [1, 2, 3], ["held_open"] * 3),
    ]
    assert heard[3].bits is not None
    assert heard[3].bits.tolist() == [1, 0]
    assert entry.table == (0,)
