"""Planted defects and spoilt books: `check_integrity` must find every one."""

from __future__ import annotations

import copy

import pytest

from luce.scheduling.block_pool import BlockPool
from luce.scheduling.block_states import BlockStates, Ids
from luce.scheduling.holds import StaleHoldError
from tests.scheduling.pool_probe import digests, everything, filled


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
