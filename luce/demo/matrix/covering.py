"""Few cells that together hold every combination of levels of any three factors: a covering array of strength 3.

A difference that needs no more than three things to meet shows in one of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from luce.demo.matrix.cells import Cell, all_cells

__all__ = ["covering_cells", "tuples_of"]

Combination = tuple[tuple[int, int], ...]
"""(factor, level) of some factors."""


def tuples_of(cell: Cell, strength: int) -> Iterator[Combination]:
    """The combinations of ``strength`` levels that a cell holds."""
    return itertools.combinations(enumerate(cell.levels), strength)


def covering_cells(cells: Sequence[Cell] | None = None, strength: int = 3) -> list[Cell]:
    """Greedily: the cell that adds most combinations, the first of equals, until none is left. Always the same.

    Args:
        cells: to choose from; all of them if None.
    """
    held = {cell: frozenset(tuples_of(cell, strength)) for cell in (all_cells() if cells is None else cells)}
    missing = frozenset().union(*held.values()) if held else frozenset()
    chosen = []
    while missing:
        best = max(held, key=lambda cell: len(held[cell] & missing))
        chosen.append(best)
        missing -= held.pop(best)
    return chosen
