"""How the norm kernels are launched (kernels/norm.cu)."""

from __future__ import annotations

__all__ = ["NORM_SHARED", "norm_threads"]

NORM_SHARED = 128
"""Bytes of shared memory of ``rms_norm``."""


def norm_threads(width: int) -> int:
    """Threads for rows of ``width`` values, which alone decide the order of their sum.

    Raises:
        ValueError: the kernels do not take such rows.
    """
    if width % 8 or not 0 < width <= 8192:
        raise ValueError(f"rows of {width} values: multiples of 8 up to 8192 can be normalised")
    padded = -(-width // 256) * 256
    return padded // 8
