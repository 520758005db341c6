"""What one holder has of the block pool, and what a call that the pool cannot honour raises."""

from __future__ import annotations

import attrs
import numpy as np
from numpy.typing import NDArray

from luce.errors import CapacityError

__all__ = ["Hold", "OutOfBlocksError", "StaleHoldError"]


class StaleHoldError(RuntimeError):
    """A hold was used after it was given back, while it is saved, or on another pool: a bug. Nothing has changed."""


class OutOfBlocksError(CapacityError):
    """The pool has too few blocks for the call. Nothing has changed."""

    def __init__(self, what: str, need: int, available: int) -> None:
        super().__init__(f"no room for {what}: {need} KV blocks are needed, {available} are available")
        self.need = need
        self.available = available


@attrs.define(eq=False)
class Hold:
    """The blocks of one holder in the order of their rows: a slot's block table, or a prefix entry's.

    Made and changed by the pool alone. Its arrays are replaced, never written to, so what was read before a call stays
    as it was.
    """

    serial: int
    owner: str
    """Who it is for, in messages."""
    tagged: NDArray[np.intp] = attrs.field(repr=False)
    """intp (2, n), read-only: ``ids`` and ``generations``."""
    reserved: int = 0
    """Blocks up to which it can grow whatever happens; 0 when nothing was reserved."""
    _table: tuple[int, ...] | None = attrs.field(default=None, init=False)
    count: int = attrs.field(default=0, init=False)
    """Blocks in it: its length."""

    def __attrs_post_init__(self) -> None:
        self.put(self.tagged)

    def __len__(self) -> int:
        return self.count

    @property
    def ids(self) -> NDArray[np.intp]:
        """intp (n,), its blocks. Numpy's own index type, so that no look-up has to convert it."""
        ids: NDArray[np.intp] = self.tagged[0]
        return ids

    @property
    def generations(self) -> NDArray[np.intp]:
        """intp (n,), how often the content of each block had been given up when it came in."""
        generations: NDArray[np.intp] = self.tagged[1]
        return generations

    @property
    def table(self) -> tuple[int, ...]:
        """``ids`` as a tuple, as a plan's block tables are."""
        if self._table is None:
            self._table = tuple(self.ids.tolist())
        return self._table

    @property
    def owed(self) -> int:
        """Blocks of the reservation that it does not have yet."""
        return max(0, self.reserved - self.count)

    @property
    def name(self) -> str:
        """As messages call it."""
        return f"hold {self.serial} ({self.owner})" if self.owner else f"hold {self.serial}"

    def put(self, tagged: NDArray[np.intp]) -> None:
        """For the pool: these are its blocks from here on."""
        tagged.flags.writeable = False
        self.tagged, self._table, self.count = tagged, None, tagged.shape[1]
