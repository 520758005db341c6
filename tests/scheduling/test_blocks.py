from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from luce.scheduling.blocks import BlockPool, blocks_for


@pytest.mark.parametrize(("rows", "blocks"), [(0, 0), (1, 1), (15, 1), (16, 1), (17, 2), (32, 2)])
def test_blocks_for(rows: int, blocks: int) -> None:
    assert blocks_for(rows, 16) == blocks


def test_reservation_is_all_or_nothing_and_growth_stays_within_it() -> None:
    pool = BlockPool(4, 16)
    pool.reserve(0, 40)
    assert (pool.free, pool.available) == (4, 1)
    with pytest.raises(AssertionError):
        pool.reserve(1, 32)
    assert pool.grow(0, 17) == pool.grow(0, 20)
    assert (pool.free, pool.available) == (2, 1)
    with pytest.raises(AssertionError):
        pool.grow(0, 49)
    assert pool.release(0) == 2
    assert (pool.free, pool.available) == (4, 4)


def test_double_release_is_found() -> None:
    pool = BlockPool(2, 16)
    pool.reserve(0, 16)
    pool.release(0)
    with pytest.raises(KeyError):
        pool.release(0)


def test_integrity_finds_a_planted_leak() -> None:
    pool = BlockPool(2, 16)
    pool.reserve(0, 32)
    pool.grow(0, 32)
    pool.check_integrity({0})
    with pytest.raises(AssertionError):
        pool.check_integrity(())
    pool._held[0].pop()
    with pytest.raises(AssertionError):
        pool.check_integrity()


@given(st.data())
def test_no_block_has_two_holders_whatever_happens(data: st.DataObject) -> None:
    pool = BlockPool(data.draw(st.integers(1, 12)), 4)
    limits: dict[int, int] = {}
    rows: dict[int, int] = {}
    for _ in range(data.draw(st.integers(0, 30))):
        slot = data.draw(st.integers(0, 3))
        if slot not in limits:
            want = data.draw(st.integers(1, 20))
            if blocks_for(want, 4) <= pool.available:
                pool.reserve(slot, want)
                limits[slot], rows[slot] = want, 0
        elif data.draw(st.booleans()):
            rows[slot] = data.draw(st.integers(rows[slot], limits[slot]))
            before = pool.grow(slot, rows[slot])
            assert len(before) == blocks_for(rows[slot], 4)
        else:
            pool.release(slot)
            del limits[slot], rows[slot]
        pool.check_integrity(limits)


def test_changes_are_told_once() -> None:
    pool = BlockPool(4, 16)
    pool.reserve(0, 64)
    table = pool.grow(0, 40)
    assert pool.take_changes() == (table, ())
    more = pool.grow(0, 64)[3:]
    pool.release(0)
    assert len(more) == 1
    assert pool.take_changes() == ((), table), "nobody was told of the last one"
    pool.reserve(1, 64)
    assert pool.take_changes() == ((), ())
    assert len(pool.grow(1, 17)) == 2
    pool.release(1)
    pool.reserve(1, 64)
    again = pool.grow(1, 17)
    assert pool.take_changes() == (again, ())
    assert pool.take_changes() == ((), ())
