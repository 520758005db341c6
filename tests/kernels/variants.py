"""The modules that the compile gate builds: every source with macros that its users compile it with.

A new `kernels/*.cu` that takes macros needs an entry here, the one that exercises most of it first: targets that are
like another one compile the first alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from luce.compute.kernel_sources import kernels_directory

__all__ = ["SOURCES", "variants"]

Defines = Mapping[str, int | str]

SCALED = ("Q4_K", "Q5_K", "Q6_K", "IQ4_XS")
RECORDS = ("Q4_K", "Q6_K", "IQ4_XS", "Q8_0", "Q4_0", "BF16", "Q5_K")


def _each(macro: str, values: Sequence[int | str]) -> list[Defines]:
    return [{macro: value} for value in values]


def _formats(names: Sequence[str]) -> list[Defines]:
    return _each("FORMAT", [f"FORMAT_{name}" for name in names])


_VARIANTS: dict[str, list[Defines]] = {
    "embedding.cu": _formats([*RECORDS, "F16", "F32"]),
    "pointwise.cu": _each("FUNCTION", ["SWIGLU", "ROUND", "GELU", "GELU_ERF"]),
    "selftest_activation.cu": _each("WIDTH", [8, 1, 2, 4, 16, 32]),
    "selftest_records.cu": _formats(RECORDS),
}

SOURCES = sorted(path.name for path in kernels_directory().glob("*.cu"))


def variants(source: str) -> list[Defines]:
    """Macros of each module of a source; none at all where it takes none."""
    return _VARIANTS.get(source, [{}])
