"""The layouts of weight-GEMM inputs on a device (kernels/activation.h) in numpy: sizes, packing, unpacking.

``tile`` 0 is the layout of steps, whose height is a bucket of rows; any other is the prefill layout with tiles of
that many rows.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from luce.compute.operands import Operands

__all__ = ["BUCKETS", "SUPER_BLOCK", "bucket", "num_values", "pack", "padded_depth", "padded_rows", "unpack"]

F32 = npt.NDArray[np.float32]
U16 = npt.NDArray[np.uint16]

BUCKETS = (1, 2, 4, 8, 16, 32, 64)
"""Heights of the step layout."""
SUPER_BLOCK = 256
"""K is padded with zeros to a multiple of it."""


def bucket(rows: int) -> int:
    """The least bucket that holds ``rows`` (at most 64)."""
    return next(height for height in BUCKETS if rows <= height)


def padded_depth(depth: int) -> int:
    return -(-depth // SUPER_BLOCK) * SUPER_BLOCK


def padded_rows(rows: int, tile: int) -> int:
    """Rows that the layout holds for ``rows`` given ones."""
    return bucket(rows) if tile == 0 else -(-rows // tile) * tile


def num_values(rows: int, depth: int, tile: int) -> int:
    """Operands of a buffer for ``rows`` rows of ``depth``: values and sums."""
    return padded_rows(rows, tile) * padded_depth(depth) // 16 * 17


def pack(x: F32, tile: int, fill: int = 0, *, operands: Operands) -> U16:
    """Rows [R, K] of float32 as operands in the layout, with their sums.

    Args:
        fill: bits that padded rows hold.
    """
    rows, depth = padded_rows(len(x), tile), padded_depth(x.shape[1])
    values = np.zeros((rows, depth), np.uint16)
    values[len(x) :] = fill
    values[: len(x), : x.shape[1]] = operands.hold_activations(x)
    sums = operands.widen(values).reshape(rows, depth // 32, 32)
    with np.errstate(invalid="ignore", over="ignore"):
        while sums.shape[2] > 1:
            sums = sums[:, :, ::2] + sums[:, :, 1::2]
        total = sums[:, :, 0]
        hi = operands.round(total)
        lo = operands.round(total - operands.widen(hi))
    parts = np.stack([hi, lo]).reshape(2, rows, depth // 256, 8)
    if tile == 0:
        order = values.reshape(rows, depth // 32, 2, 2, 4, 2).transpose(1, 0, 4, 2, 3, 5)
        behind = parts.reshape(2, rows, depth // 256, 4, 2).transpose(2, 1, 3, 0, 4)
    else:
        order = values.reshape(rows // tile, tile // 8, 8, depth // 64, 8, 8).transpose(0, 3, 1, 4, 2, 5)
        behind = parts.reshape(2, rows // tile, tile // 8, 8, depth // 256, 8).transpose(1, 4, 2, 0, 3, 5)
    return np.concatenate([order.reshape(-1), behind.reshape(-1)])


def unpack(packed: U16, rows: int, depth: int, tile: int, operands: Operands) -> tuple[F32, F32, F32]:
    """Values [R, K] and hi and lo of the sums [R, padded K / 32] of a buffer of :func:`num_values`."""
    height, deep = padded_rows(rows, tile), padded_depth(depth)
    values, sums = packed[: height * deep], packed[height * deep :]
    if tile == 0:
        order = values.reshape(deep // 32, height, 4, 2, 2, 2).transpose(1, 0, 3, 4, 2, 5)
        behind = sums.reshape(deep // 256, height, 4, 2, 2).transpose(3, 1, 0, 2, 4)
    else:
        order = values.reshape(height // tile, deep // 64, tile // 8, 8, 8, 8).transpose(0, 2, 4, 1, 3, 5)
        behind = sums.reshape(height // tile, deep // 256, tile // 8, 2, 8, 8).transpose(3, 0, 2, 4, 1, 5)
    x = operands.widen(np.ascontiguousarray(order).reshape(height, deep)) * operands.unit
    hi, lo = operands.widen(np.ascontiguousarray(behind).reshape(2, height, deep // 32)) * operands.unit
    return x[:rows, :depth], hi[:rows], lo[:rows]
