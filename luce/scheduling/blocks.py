"""The KV block pool: who holds which block, as counts and ids.

Passive and owned by the step loop alone. Blocks are reserved at admission (so that a granted request can always
grow to its limit) and allocated as rows are planned. Prefix sharing, parking and the block chart come with the
pressure ladder; the invariant ``free + held = total`` is theirs too (design-notes I2).
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["BlockPool", "blocks_for"]


def blocks_for(rows: int, block_size: int) -> int:
    """Blocks that ``rows`` rows take."""
    return -(-rows // block_size)


class BlockPool:
    """Free blocks and per-slot holdings of one engine.

    Args:
        num_blocks: blocks in the engine's pool.
        block_size: rows (tokens) in a block.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._free = list(range(num_blocks - 1, -1, -1))
        self._held: dict[int, list[int]] = {}
        self._tables: dict[int, tuple[int, ...]] = {}
        self._reserved: dict[int, int] = {}
        self._outstanding = 0
        self._fresh: set[int] = set()
        self._freed: list[int] = []

    @property
    def free(self) -> int:
        """Blocks that no slot holds."""
        return len(self._free)

    @property
    def available(self) -> int:
        """Free blocks that no granted slot may still claim."""
        return len(self._free) - self._outstanding

    def reserve(self, slot: int, rows: int) -> None:
        """Promise ``slot`` all the blocks it can ever need. Policy has checked that they are available."""
        blocks = blocks_for(rows, self.block_size)
        assert slot not in self._reserved, f"slot {slot} is reserved twice"
        assert blocks <= self.available, (slot, blocks, self.available)
        self._reserved[slot] = blocks
        self._outstanding += blocks
        self._held[slot] = []
        self._tables[slot] = ()

    def grow(self, slot: int, rows: int) -> tuple[int, ...]:
        """Block table of ``slot`` covering ``rows`` rows; allocates what is missing."""
        held = self._held[slot]
        missing = blocks_for(rows, self.block_size) - len(held)
        if missing > 0:
            assert len(held) + missing <= self._reserved[slot], f"slot {slot} outgrows its reservation"
            fresh = [self._free.pop() for _ in range(missing)]
            held.extend(fresh)
            self._fresh.update(fresh)
            self._outstanding -= missing
            self._tables[slot] = tuple(held)
        return self._tables[slot]

    def release(self, slot: int) -> int:
        """Return everything of ``slot``; gives the number of blocks freed. A second release is a bug."""
        held = self._held.pop(slot)
        self._outstanding -= self._reserved.pop(slot) - len(held)
        del self._tables[slot]
        self._free.extend(reversed(held))
        self._freed.extend(block for block in held if block not in self._fresh)
        self._fresh.difference_update(held)  # no plan has named these
        return len(held)

    def take_changes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """``fresh_blocks`` and ``freed_blocks`` of the next plan. To be called for every plan that is launched."""
        changes = tuple(sorted(self._fresh)), tuple(self._freed)
        self._fresh, self._freed = set(), []
        return changes

    def check_integrity(self, live_slots: Iterable[int] | None = None) -> None:
        """free + held = total, no block twice, reservations add up; called whenever the loop goes idle."""
        seen = list(self._free)
        for held in self._held.values():
            seen.extend(held)
        assert len(seen) == self.num_blocks, (len(seen), self.num_blocks)
        assert len(set(seen)) == self.num_blocks, "a block is held twice"
        outstanding = sum(self._reserved[slot] - len(held) for slot, held in self._held.items())
        assert outstanding == self._outstanding, (outstanding, self._outstanding)
        if live_slots is not None:
            assert set(self._held) == set(live_slots), (set(self._held), set(live_slots))
