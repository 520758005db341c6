"""Invariant I2 of the block pool: everything is counted again from the holds, and all books must agree."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from luce.scheduling.block_states import BlockStates
from luce.scheduling.holds import Hold

__all__ = ["check_blocks"]


def check_blocks(blocks: BlockStates, holds: Sequence[Hold], parking: Sequence[Hold]) -> None:
    """Raises AssertionError that says what does not add up. Linear in the pool.

    Args:
        holds: all live holds, those in ``parking`` included.
        parking: holds that are being saved.
    """
    table, states = blocks.table, blocks.bytes
    if states.max(initial=0) >= len(table.configurations):
        raise AssertionError(f"block {int(states.argmax())} has the unknown state byte {states.max()}")
    in_state = {name: table.active(name, states) for name in table.chart.states}
    refs = np.zeros(len(states), np.int64)
    saved = np.zeros(len(states), np.bool_)
    for hold in holds:
        refs += np.bincount(hold.ids, minlength=len(states))
        moved = hold.ids[blocks.generations[hold.ids] != hold.generations]
        if len(moved):
            raise AssertionError(f"{hold.name} has block {moved[0]}, whose content was given up since")
    for hold in parking:
        saved[hold.ids] = True

    def expect(fine: NDArray[np.bool_], message: str) -> None:
        if not fine.all():
            block = int(np.flatnonzero(~fine)[0])
            state = table.configurations[states[block]].states[-1]
            raise AssertionError(f"block {block} ({state}) {message}")

    expect(refs == blocks.refs, "is not in as many holds as it has references")
    had, incomplete = in_state["held"] | in_state["saving"], in_state["held_open"] | in_state["saving"]
    expect((refs > 0) == had, "is held by nobody, or in a hold and not held")
    expect((refs == 1) | ~incomplete, "is in more than one hold and not complete")
    expect(saved | ~in_state["saving"], "is saving, and no hold is being saved")
    expect(~saved | ~in_state["held_open"], "is written while its hold is being saved")
    expect(_marks(blocks.free.ids(), states) == in_state["free"], "is not as the list of free blocks says")
    expect(
        _marks(list(blocks.cached), states) == in_state["cached"], "is not as the list of cached ones says"
    )
    expect(~in_state["cached"] | (blocks.index.duplicate == 0), "is cached, and another one has its digest")
    if len(blocks.free) != np.count_nonzero(in_state["free"]):
        raise AssertionError(f"{len(blocks.free)} blocks are counted as free; that is not how many there are")
    if blocks.saving != np.count_nonzero(in_state["saving"]):
        raise AssertionError(f"{blocks.saving} blocks are counted as saving; that is not how many there are")
    blocks.index.check(np.flatnonzero(in_state["held_hashed"] | in_state["cached"]).tolist())


def _marks(ids: NDArray[np.intp] | list[int], states: NDArray[np.uint8]) -> NDArray[np.bool_]:
    marks = np.zeros(len(states), np.bool_)
    marks[ids] = True
    return marks
