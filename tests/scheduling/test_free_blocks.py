from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from luce.scheduling.free_blocks import FreeBlocks


def ids(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.intp)


def test_lowest_first() -> None:
    free = FreeBlocks(10)
    assert free.pop(4).tolist() == [0, 1, 2, 3]
    free.push(ids(2, 0))
    assert free.pop(3).tolist() == [0, 2, 4]
    assert free.pop(0).tolist() == []
    free.push(ids())
    assert free.ids().tolist() == [5, 6, 7, 8, 9]
    assert free.pop(5).tolist() == [5, 6, 7, 8, 9]
    assert len(free) == 0
    assert free.ids().tolist() == []
    free.push(ids(3))
    assert free.pop(1).dtype == np.intp


def test_a_long_run_is_one_entry() -> None:
    """A call costs what its runs cost: where nothing is cut up, thousands are handed out with one heap operation."""
    free = FreeBlocks(100_000)
    taken = free.pop(60_000)
    assert taken.tolist() == list(range(60_000))
    free.push(taken[::-1])
    assert len(free._runs) == 2
    assert free.pop(70_000)[-1] == 69_999


@given(st.data())
@settings(deadline=None)
def test_it_is_a_sorted_set(data: st.DataObject) -> None:
    size = data.draw(st.integers(0, 40))
    free, model = FreeBlocks(size), set(range(size))
    for _ in range(data.draw(st.integers(0, 20))):
        if data.draw(st.booleans()):
            count = data.draw(st.integers(0, len(model)))
            lowest = sorted(model)[:count]
            assert free.pop(count).tolist() == lowest
            model -= set(lowest)
        else:
            taken = sorted(set(range(size)) - model)
            back = data.draw(st.lists(st.sampled_from(taken), unique=True)) if taken else []
            free.push(ids(*back))
            model |= set(back)
        assert len(free) == len(model)
        assert free.ids().tolist() == sorted(model)
