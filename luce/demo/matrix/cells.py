"""What is varied, and the cells that it spans."""

from __future__ import annotations

import itertools
import math

import attrs

from luce.errors import ConfigError

__all__ = ["FACTORS", "Cell", "all_cells", "named_cell"]

FACTORS: dict[str, tuple[str, ...]] = {
    "cache": ("cold", "hot", "evicted"),
    "prefill": ("whole", "64", "7", "1"),
    "slots": ("1", "4", "8"),
    "parking": ("unparked", "saved", "dropped", "both"),
    "pictures": ("text", "images"),
    "company": ("steady", "cancelled", "failing"),
}
"""Levels by factor.

- cache: nobody has asked the like; the same was answered before; it was, and other requests pushed it out of the cache.
- prefill: rows of prompts in a step.
- slots: of the service; there are always as many neighbours.
- parking: what happens to the request on its way; both is saved and dropped, in either order.
- pictures: what is asked about.
- company: neighbours run their answers to the end; all are cancelled at random moments; some fail, with rows that are
  not numbers and with pictures that cannot be encoded.
"""

NAMES = tuple(FACTORS)


@attrs.frozen
class Cell:
    """One combination: an index into each factor's levels."""

    levels: tuple[int, ...]

    @property
    def name(self) -> str:
        """As ``hot-7-4-saved-images-failing``."""
        return "-".join(FACTORS[name][level] for name, level in zip(NAMES, self.levels, strict=True))

    def __str__(self) -> str:
        return self.name

    def _level(self, factor: str) -> str:
        return FACTORS[factor][self.levels[NAMES.index(factor)]]

    @property
    def cache(self) -> str:
        return self._level("cache")

    @property
    def prefill_budget(self) -> int | None:
        level = self._level("prefill")
        return None if level == "whole" else int(level)

    @property
    def slots(self) -> int:
        return int(self._level("slots"))

    @property
    def saves(self) -> bool:
        return self._level("parking") in ("saved", "both")

    @property
    def drops(self) -> bool:
        return self._level("parking") in ("dropped", "both")

    @property
    def images(self) -> bool:
        return self._level("pictures") == "images"

    @property
    def company(self) -> str:
        return self._level("company")

    @property
    def sampled(self) -> bool:
        """Half of the cells draw their tokens, with penalties; whatever five levels a cell has, either happens."""
        return sum(self.levels) % 2 == 1


def all_cells() -> list[Cell]:
    """Every combination, the last factor first."""
    return [
        Cell(levels) for levels in itertools.product(*(range(len(levels)) for levels in FACTORS.values()))
    ]


def named_cell(name: str) -> Cell:
    """The cell of that name.

    Raises:
        ConfigError: there is none; says what a name is made of.
    """
    parts = name.split("-")
    try:
        return Cell(tuple(levels.index(part) for levels, part in zip(FACTORS.values(), parts, strict=True)))
    except ValueError:
        known = " ".join(f"{factor}: {'|'.join(levels)};" for factor, levels in FACTORS.items())
        raise ConfigError(
            f"no cell has this name, which is one level of each factor, joined by hyphens ({known[:-1]})",
            flag="--cell",
        ) from None


assert math.prod(map(len, FACTORS.values())) == 864
