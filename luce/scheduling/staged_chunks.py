"""How many rows the next staged pass of a prompt takes, when it must not cut a picture's block (spec/deepseek4 §22.9).

A staged pass runs layer-major and sees a whole picture at once, so a pass that ends inside a block is wrong, and a pass
of fewer than ``min_rows`` rows would take the decode-shaped way. The rule keeps each pass near a budget, cuts no block,
and leaves no stub that is too short to be a pass: it takes the stub along. It grows a chunk and never shrinks one.

Pure, and O(log blocks): what matters of a layout is where passes may end, and that is asked at four places at most.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from operator import itemgetter
from typing import Protocol

import attrs

__all__ = [
    "MIN_ROWS",
    "Block",
    "BlockEnds",
    "LegalEnds",
    "atomic_image_chunk",
    "check_chunk",
    "choose_rows",
    "staged_chunk",
]

MIN_ROWS = 5
"""Rows of the shortest pass that runs layer-major."""

Block = tuple[int, int]
"""Positions [begin, end) of all tokens of one picture, lead pads included."""

_begin = itemgetter(0)


class LegalEnds(Protocol):
    """After how many rows a pass may end. Any number of rows may be asked for, also beyond the prefix."""

    def at_most(self, rows: int) -> int:
        """The largest legal number that is at most ``rows``; negative or 0 if there is none above."""

    def at_least(self, rows: int) -> int:
        """The smallest legal number that is at least ``rows``."""


@attrs.frozen
class BlockEnds:
    """Ends that lie strictly inside no block."""

    blocks: Sequence[Block]
    position: int

    def at_most(self, rows: int) -> int:
        around = self._around(self.position + rows)
        return rows if around is None else around[0] - self.position

    def at_least(self, rows: int) -> int:
        around = self._around(self.position + rows)
        return rows if around is None else around[1] - self.position

    def _around(self, place: int) -> Block | None:
        """The block that ``place`` lies strictly inside of. Only the last one that begins before it can be that."""
        index = bisect_left(self.blocks, place, key=_begin) - 1
        return self.blocks[index] if index >= 0 and place < self.blocks[index][1] else None


def staged_chunk(
    blocks: Sequence[Block], position: int, remaining: int, budget: int, min_rows: int = MIN_ROWS
) -> int:
    """Rows of the next pass, from ``position`` on.

    With E the n in 1..remaining after which no block is cut, n0 the largest of E up to
    ``min(remaining, max(budget, min_rows))`` or else the smallest of E, and V the n of E that are at least ``min_rows``
    and leave nothing or at least ``min_rows``: n0 if it is in V, else the smallest of V above n0, else 0.

    So it is 0 only if ``position`` or the prefix's end lies inside a block, or fewer than ``min_rows`` rows remain. It
    is above the budget only if nothing shorter is in V; then it is at most ``cap + min_rows - 1`` or
    ``2 * (min_rows - 1)`` and the longest block, whichever is more.

    Args:
        blocks: sorted, not empty, disjoint; they may touch. Those that end at or before ``position`` do not matter.
        position: of the first row; not inside a block.
        remaining: rows left in the prefix, which must not end inside a block.
        budget: rows that a pass should have at most.
        min_rows: rows that a pass must have at least.
    """
    return choose_rows(BlockEnds(blocks, position), remaining, budget, min_rows)


def choose_rows(ends: LegalEnds, remaining: int, budget: int, min_rows: int) -> int:
    """:func:`staged_chunk` for any set of legal ends."""
    min_rows = max(min_rows, 1)
    if remaining < min_rows:
        return 0
    first = _whole_blocks(ends, min(remaining, max(budget, min_rows)), remaining, remaining)
    if first == 0 or first == remaining or min_rows <= first <= remaining - min_rows:
        return first
    grown = ends.at_least(first + 1)  # above the cap, as all legal ends above first are: long enough
    if grown <= remaining - min_rows:
        return grown
    return remaining if ends.at_most(remaining) == remaining else 0


def atomic_image_chunk(
    blocks: Sequence[Block], position: int, proposed: int, remaining: int, capacity: int
) -> int:
    """The most of ``proposed`` rows that fit ``capacity`` and cut no block.

    A block that starts at ``position`` and is longer than that is taken whole if it fits ``capacity`` and
    ``remaining``. 0 if nothing fits, if ``position`` lies inside a block, or if more is proposed than remains.

    Args:
        blocks: as in :func:`staged_chunk`.
        proposed, remaining, capacity: rows.
    """
    return _whole_blocks(BlockEnds(blocks, position), proposed, remaining, capacity)


def _whole_blocks(ends: LegalEnds, proposed: int, remaining: int, capacity: int) -> int:
    limit = min(proposed, capacity)
    if limit <= 0 or proposed > remaining or ends.at_most(0) != 0:
        return 0
    below = ends.at_most(limit)
    if below > 0:
        return below
    block = ends.at_least(limit)
    return block if block <= min(remaining, capacity) else 0


def check_chunk(
    blocks: Sequence[Block], position: int, n: int, remaining: int, budget: int, min_rows: int = MIN_ROWS
) -> None:
    """Check that a pass of ``n`` rows keeps the contract, whoever chose it. Linear in the blocks.

    A shorter pass than :func:`staged_chunk` gives is fine if it cuts nothing and leaves no stub; a longer one is not.

    Raises:
        AssertionError: says what is wrong, with position, n, budget, prefix, minimum and layout.
    """
    fault = _fault(blocks, position, n, remaining, budget, min_rows)
    if fault is not None:
        raise AssertionError(
            f"staged pass {fault}: position {position}, n {n}, budget {budget}, prefix {position + remaining}, "
            f"min_rows {min_rows}, layout {[tuple(block) for block in blocks]}"
        )


def _fault(
    blocks: Sequence[Block], position: int, n: int, remaining: int, budget: int, min_rows: int
) -> str | None:
    before = None
    for begin, end in blocks:
        if begin >= end or (before is not None and begin < before):
            return (
                f"of a layout whose block [{begin}, {end}) is empty or begins before the end of the last one"
            )
        before = end
    ends = BlockEnds(blocks, position)
    if ends.at_most(0) != 0:
        return "that starts inside a block"
    if ends.at_most(remaining) != remaining:
        return "of a prefix that ends inside a block"
    if not 1 <= n <= remaining:
        return f"that is none of the 1 to {remaining} rows that remain"
    if ends.at_most(n) != n:
        return "that ends inside a block"
    if n < min_rows:
        return "of too few rows"
    if 0 < remaining - n < min_rows:
        return f"that leaves a stub of {remaining - n} rows"
    most = choose_rows(ends, remaining, budget, min_rows)
    return f"over its budget, which allows {most} rows here" if n > most else None
