"""Are a plan's blocks legal? Who holds what, who writes where."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from luce.engines.fake.violations import PlanError
from luce.engines.seam import StepPlan

__all__ = ["BlockChecker"]


class BlockChecker:
    """Follows the blocks of plans as they are launched.

    A block is written by one sequence alone from when it is fresh until it is freed; everybody else may read it.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self._num_blocks = num_blocks
        self._size = block_size
        self._writers: dict[int, object | None] = {}
        """By held block, who writes it; None until somebody does."""

    def change(self, plan: StepPlan, tables: Iterable[Sequence[int]]) -> None:
        """Follow freed and fresh blocks. ``tables``: those of the open slots.

        Raises:
            PlanError: a block is freed that nobody held or that an open slot still has, or is called fresh while
                somebody holds it.
        """
        if plan.freed_blocks:
            used = set[int]().union(*tables)
            for block in plan.freed_blocks:
                if block not in self._writers:
                    raise PlanError(f"step {plan.number} frees block {block}, which nobody holds")
                if block in used:
                    raise PlanError(f"step {plan.number} frees block {block}, which an open slot has")
                del self._writers[block]
        for block in plan.fresh_blocks:
            if block in self._writers:
                raise PlanError(f"step {plan.number} calls block {block} fresh, which somebody holds")
            if not 0 <= block < self._num_blocks:
                raise PlanError(f"step {plan.number} calls block {block} fresh, which does not exist")
            self._writers[block] = None

    def wrong_table(self, table: Sequence[int]) -> str | None:
        if len(set(table)) != len(table):
            return "a block stands twice in its table"
        for block in table:
            if block not in self._writers:
                return f"its table names block {block}, which nobody holds"
        return None

    def write(self, writer: object, table: Sequence[int], start: int, stop: int) -> str | None:
        """``writer`` writes rows ``start`` … ``stop`` - 1."""
        if -(-stop // self._size) > len(table):
            return f"a table of {len(table)} blocks does not cover it"
        for block in table[start // self._size : -(-stop // self._size)]:
            known = self._writers[block]
            if known is None:
                self._writers[block] = writer
            elif known is not writer:
                return f"block {block} is written by another sequence, too"
        return None
