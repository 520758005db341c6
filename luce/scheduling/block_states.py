"""What the KV pool knows of its blocks, whoever holds them: states, references, digests, and the two orders.

The state of a block is one byte, stepped by the table of ``statecharts/block.scxml``. Beside it stands what the
chart's guards read (reference counts, digests) and the orders in which blocks are taken (lowest free number first) and
given up (least recently used first, of one release the deepest first).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from luce.charts.loader import load_chart
from luce.charts.table import compile_table
from luce.scheduling.digest_index import DigestIndex
from luce.scheduling.free_blocks import FreeBlocks

__all__ = ["GUARDS", "BlockChanges", "BlockStates", "Ids", "RangeStep"]

Ids = NDArray[np.intp]
"""intp (n,), block numbers, each at most once."""

GUARDS = ("shared", "duplicate")
"""Of the chart, by bit."""
_SHARED, _DUPLICATE = 1, 2


class RangeStep(NamedTuple):
    """One event of the block chart, handled by a range of blocks."""

    event: str
    ids: Ids
    bits: NDArray[np.uint8] | None
    """uint8 (n,), guard answers of each block in the chart's order; None when the event asks none."""
    after: NDArray[np.uint8]
    """uint8 (n,), state bytes after the event."""


class BlockChanges(NamedTuple):
    """What an engine must know of the pool: ``StepPlan.freed_blocks`` and ``StepPlan.fresh_blocks``, ascending."""

    freed: tuple[int, ...]
    """Blocks whose content was given up."""
    fresh: tuple[int, ...]
    """Blocks that were nobody's and are held. One of them may be among the freed ones, too: given up before."""


class BlockStates:
    """The books of ``num_blocks`` blocks. Its methods take ranges of blocks and trust the pool with the rest.

    A method raises IllegalEvent, and changes nothing, when the chart forbids its event for one of the blocks.
    """

    def __init__(self, num_blocks: int, observer: Callable[[RangeStep], None] | None) -> None:
        self.table = compile_table(load_chart("block"))
        assert self.table.chart.guard_order == GUARDS
        self._free_byte = self.table.number("free")
        self._cached_byte = self.table.number("cached")
        self._saving_byte = self.table.number("saving")
        self.observer = observer
        self.bytes = np.full(num_blocks, self._free_byte, np.uint8)
        """uint8 (num_blocks,), state bytes."""
        self.refs = np.zeros(num_blocks, np.int32)
        """int32 (num_blocks,), in how many holds each is."""
        self.generations = np.zeros(num_blocks, np.intp)
        """intp (num_blocks,), how often its content was given up."""
        self.free = FreeBlocks(num_blocks)
        self.index = DigestIndex(num_blocks)
        self.cached: OrderedDict[int, None] = OrderedDict()
        """The first is the next to be given up."""
        self.saving = 0
        """How many are saving."""
        self._freed: set[int] = set()
        self._fresh: set[int] = set()

    def alone(self, ids: Ids) -> int:
        """How many of ``ids`` are in one hold only."""
        return int(np.count_nonzero(self.refs.take(ids) == 1))

    def tagged(self, ids: Ids) -> NDArray[np.intp]:
        """intp (2, n): ``ids`` and their generations, as a hold keeps them."""
        return np.stack((ids, self.generations.take(ids)))

    def take(self, count: int) -> Ids:
        """``count`` fresh blocks in one hold, ascending; evicts what is missing. There must be as many."""
        if count > len(self.free):
            self.evict(count - len(self.free))
        ids = self.free.pop(count)
        self._step("alloc", ids)
        self.refs[ids] = 1
        self._fresh.update(ids.tolist())
        return ids

    def share(self, ids: Ids) -> None:
        """One reference more for each of ``ids``."""
        self._step("share", ids)
        self.refs[ids] += 1
        if self.cached:
            for block in ids.tolist():
                self.cached.pop(block, None)

    def fill(self, ids: Ids, digests: Sequence[bytes]) -> None:
        """``ids`` are complete and have these digests."""
        self._step("fill", ids)
        for block, digest in zip(ids.tolist(), digests, strict=True):
            self.index.add(block, digest)

    def save(self, ids: Ids) -> None:
        """A copy of ``ids`` begins. Their reference stays until ``let_go('saved', ids)``."""
        after = self._step("save", ids)
        self.saving += int(np.count_nonzero(after == self._saving_byte))

    def let_go(self, event: str, ids: Ids) -> None:
        """One reference less for each of ``ids``, by ``release`` or ``saved``."""
        bits = self.index.duplicate.take(ids) * np.uint8(_DUPLICATE)
        bits[self.refs.take(ids) > 1] |= _SHARED
        was_saving = int(np.count_nonzero(self.bytes.take(ids) == self._saving_byte)) if self.saving else 0
        after = self._step(event, ids, bits)
        self.saving -= was_saving
        self.refs[ids] -= 1
        freed = after == self._free_byte
        # Deepest first, so that what leads to a block outlives it. A duplicate makes the first one as recent as itself.
        for block in reversed(ids[(after == self._cached_byte) | (freed & (bits == _DUPLICATE))].tolist()):
            first = self.index.first(block)
            if first == block or first in self.cached:
                self.cached[first] = None
                self.cached.move_to_end(first)
        self._give_up(ids[freed])

    def evict(self, count: int) -> Ids:
        """Gives up the next ``count`` cached blocks, and says which. There must be as many."""
        ids = np.array([self.cached.popitem(last=False)[0] for _ in range(count)], np.intp)
        self._step("evict", ids)
        self._give_up(ids)
        return ids

    def take_changes(self) -> BlockChanges:
        """What has become of blocks since the last call."""
        changes = BlockChanges(tuple(sorted(self._freed)), tuple(sorted(self._fresh)))
        self._freed, self._fresh = set(), set()
        return changes

    def _step(self, event: str, ids: Ids, bits: NDArray[np.uint8] | None = None) -> NDArray[np.uint8]:
        after = self.table.step(event, self.bytes, ids, bits)
        if self.observer is not None and len(ids):
            self.observer(RangeStep(event, ids, bits, after))
        return after

    def _give_up(self, ids: Ids) -> None:
        """The content of ``ids``, which are free now, is forgotten."""
        self.generations[ids] += 1
        self.free.push(ids)
        blocks = ids.tolist()
        self.index.drop(blocks)
        self._freed.update(block for block in blocks if block not in self._fresh)
        self._fresh.difference_update(blocks)
