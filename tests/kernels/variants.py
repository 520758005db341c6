"""The modules that the compile gate builds: every source with macros that its users compile it with.

What the engine's classes ask for is taken from them. Another `kernels/*.cu` that takes macros needs an entry here, the
one that exercises most of it first: targets that are like another one compile the first alone.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import numpy as np

from luce.compute.kernel_sources import kernels_directory
from luce.engines.qwen35.device.attention import AttentionKernels
from luce.engines.qwen35.device.deltanet import DeltaNetLauncher, scratch_arrays
from luce.engines.qwen35.shapes import released
from tests.kernels.recording import RecordingDevice

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

SHAPES = ("qwen3.5-27b", "qwen3.5-0.8b")
"""Whose kernels are compiled, the first alone for targets that are like another one."""


@functools.cache
def _asked(target: str) -> dict[str, list[Defines]]:
    """What the engine's own classes ask a device for, by source."""
    found: dict[str, list[Defines]] = {}
    for shape in SHAPES:
        device, text = RecordingDevice(target), released(shape).text
        AttentionKernels(device, text)
        DeltaNetLauncher(device, text, {spec.name: np.empty(0) for spec in scratch_arrays(text, 64, 1)})
        for source, macros in device.asked:
            if dict(macros) not in (known := found.setdefault(source, [])):
                known.append(dict(macros))
    return found


SOURCES = sorted(path.name for path in kernels_directory().glob("*.cu"))


def variants(source: str, target: str) -> list[Defines]:
    """Macros of each module of a source; none at all where it takes none."""
    return _VARIANTS.get(source) or _asked(target).get(source) or [{}]
