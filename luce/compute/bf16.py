"""bf16 as bits in uint16: rounding from float32 and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["round_bf16", "widen_bf16"]


def round_bf16(x: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """To nearest even; every NaN becomes 0x7fff, as the kernels have it."""
    bits = x.view(np.uint32)
    rounded: npt.NDArray[np.uint16] = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    rounded[np.isnan(x)] = 0x7FFF
    return rounded


def widen_bf16(bits: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    return (bits.astype(np.uint32) << 16).view(np.float32)
