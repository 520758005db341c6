"""Pillow's bicubic with antialias in plain numpy: an oracle for pass order and rounding (spec qwen35 §11)."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

__all__ = ["bicubic"]


def bicubic(pixels: npt.NDArray[np.uint8], height: int, width: int) -> npt.NDArray[np.uint8]:
    """The width pass first, 8 bits in between, then the height; a side that stays is left alone."""
    if width != pixels.shape[1]:
        pixels = _pass(pixels.transpose(1, 0, 2), width).transpose(1, 0, 2)
    return _pass(pixels, height) if height != pixels.shape[0] else pixels


def _pass(pixels: npt.NDArray[np.uint8], size: int) -> npt.NDArray[np.uint8]:
    old = len(pixels)
    step = old / size
    spread = max(step, 1.0)
    reach = 2 * spread
    out = np.empty((size, *pixels.shape[1:]), np.uint8)
    for i in range(size):
        centre = (i + 0.5) * step
        low, high = max(int(centre - reach + 0.5), 0), min(int(centre + reach + 0.5), old)
        weights = np.array([_kernel((x - centre + 0.5) / spread) for x in range(low, high)])
        weights = weights / weights.sum() * (1 << 22)
        whole = np.array([math.trunc(w + math.copysign(0.5, w)) for w in weights], np.int64)
        sums = np.tensordot(whole, pixels[low:high].astype(np.int64), 1)
        out[i] = np.clip((sums + (1 << 21)) >> 22, 0, 255)
    return out


def _kernel(x: float) -> float:
    x = abs(x)
    if x < 1:
        return 1.5 * x**3 - 2.5 * x**2 + 1
    return -0.5 * x**3 + 2.5 * x**2 - 4 * x + 2 if x < 2 else 0.0
