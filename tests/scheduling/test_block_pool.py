"""The block pool call by call: what is had, kept, promised and refused."""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import pytest

from luce.errors import CapacityError, IllegalEvent
from luce.scheduling.block_pool import BlockPool, blocks_for
from luce.scheduling.block_states import BlockStates, Ids, RangeStep
from luce.scheduling.holds import Hold, OutOfBlocksError, StaleHoldError
from tests.scheduling.pool_probe import everything, refused


def digests(text: str) -> list[bytes]:
    return [letter.encode() for letter in text]


def filled(pool: BlockPool, text: str, owner: str = "") -> Hold:
    """A hold of one filled block for each letter, which is its digest."""
    hold = pool.allocate(len(text), owner)
    pool.fill(hold, 0, digests(text))
    return hold


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


# Promises


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


# Stale handles


USES: dict[str, Callable[[BlockPool, Hold], object]] = {
    "extend": lambda pool, hold: pool.extend(hold, 1),
    "extend by nothing": lambda pool, hold: pool.extend(hold, 0),
    "extend_all": lambda pool, hold: pool.extend_all([(pool.allocate(0), 1), (hold, 1)]),
    "share": lambda pool, hold: pool.share(hold, 1),
    "truncate": lambda pool, hold: pool.truncate(hold, 0),
    "release": lambda pool, hold: pool.release(hold),
    "fill": lambda pool, hold: pool.fill(hold, 0, []),
    "begin_save": lambda pool, hold: pool.begin_save(hold),
    "reserve": lambda pool, hold: pool.reserve(hold, 2),
    "unreserve": lambda pool, hold: pool.unreserve(hold),
    "gain": lambda pool, hold: pool.gain(hold),
}


def stale(pool: BlockPool, hold: Hold, use: str, match: str) -> None:
    if use == "extend_all":
        beside = pool.allocate(0)
        with refused(pool, StaleHoldError, match):
            pool.extend_all([(beside, 1), (hold, 1)])
    else:
        with refused(pool, StaleHoldError, match):
            USES[use](pool, hold)


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


# Planted defects: each must be found


class ForgetsARelease(BlockStates):
    def let_go(self, event: str, ids: Ids) -> None:
        super().let_go(event, ids[:-1])


class ForgetsToCount(BlockStates):
    def let_go(self, event: str, ids: Ids) -> None:
        super().let_go(event, ids)
        self.refs[ids[:1]] += 1


class SharesForNothing(BlockStates):
    def share(self, ids: Ids) -> None:
        super().share(ids)
        self.refs[ids] -= 1


class ForgetsTheCache(BlockStates):
    def share(self, ids: Ids) -> None:
        kept = self.cached.copy()
        super().share(ids)
        self.cached = kept


class KeepsDigests(BlockStates):
    def evict(self, count: int) -> Ids:
        self.index.drop = lambda blocks: None  # type: ignore[method-assign]
        return super().evict(count)


class LosesAFreeBlock(BlockStates):
    def take(self, count: int) -> Ids:
        ids = super().take(count)
        if len(self.free):
            self.free.pop(1)
        return ids


class MiscountsSaving(BlockStates):
    def save(self, ids: Ids) -> None:
        super().save(ids)
        self.saving += 1


DEFECTS = [
    ForgetsARelease, ForgetsToCount, SharesForNothing, ForgetsTheCache, KeepsDigests, LosesAFreeBlock, MiscountsSaving,
]  # fmt: skip


def everyday(pool: BlockPool) -> None:
    """A little of everything."""
    pool.release(filled(pool, "ab"))
    pool.check_integrity([])
    slot = pool.adopt(digests("ab"))
    pool.extend(slot, 2)
    pool.check_integrity([slot])
    entry = pool.share(slot, 2)
    pool.check_integrity([slot, entry])
    pool.begin_save(slot)
    pool.check_integrity([slot, entry])
    pool.saved(slot)
    pool.check_integrity([entry])
    pool.release(entry)
    pool.evict(1)
    pool.check_integrity([])
    pool.allocate(0)


@pytest.mark.parametrize("defect", [BlockStates, *DEFECTS])
def test_integrity_finds_a_planted_defect(defect: type[BlockStates]) -> None:
    pool = BlockPool(8, 16)
    pool._blocks = defect(8, None)
    if defect is BlockStates:
        everyday(pool)
    else:
        with pytest.raises((AssertionError, StaleHoldError)) as found:
            everyday(pool)
        assert str(found.value)


def test_integrity_finds_lost_and_invented_holds_and_promises() -> None:
    pool = BlockPool(8, 16)
    a, b = pool.allocate(1, "slot 0"), pool.allocate(1)
    pool.check_integrity([b, a])
    with pytest.raises(AssertionError, match=r"hold 0 \(slot 0\) is nobody's"):
        pool.check_integrity([b])
    with pytest.raises(AssertionError, match="hold 1 is believed to be live"):
        pool.check_integrity([a, b, copy.copy(b)])
    pool.reserve(a, 3)
    a.reserved = 2
    with pytest.raises(AssertionError, match="1 blocks are promised, 2 are counted"):
        pool.check_integrity([a, b])
    a.reserved = 20
    pool._owed = 19
    with pytest.raises(AssertionError, match="13 blocks more are promised than there are"):
        pool.check_integrity([a, b])
    pool._blocks.bytes[5] = 200
    with pytest.raises(AssertionError, match="block 5 has the unknown state byte 200"):
        pool.check_integrity([a, b])


def test_refused_is_armed() -> None:
    """`everything` sees a change, so that `refused` can fail."""
    pool = BlockPool(4, 16)
    before = everything(pool)
    pool.reserve(pool.allocate(0), 2)
    assert everything(pool) != before
