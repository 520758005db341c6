"""Start-up check of the facts about numpy that exactness rests on; the BLAS shapes are checked where they are packed.

Run once per process: elementwise functions must give an element the same bits at any place, length and alignment,
and a row reduction the same bits whatever the number of rows.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from luce.errors import DeviceError

__all__ = ["ascending_sum_holds", "check_operators", "elementwise_holds", "reduction_holds"]

F32 = npt.NDArray[np.float32]

ELEMENTWISE: tuple[np.ufunc, ...] = (np.exp, np.log1p, np.tanh, np.sqrt)
LENGTHS = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33)


def _bits(a: F32) -> npt.NDArray[np.uint32]:
    return np.ascontiguousarray(a).view(np.uint32)


def elementwise_holds(function: np.ufunc, values: F32, lengths: tuple[int, ...] = LENGTHS) -> bool:
    """Does ``function`` give every one of ``values`` its own bits in arrays of all these lengths, at all
    alignments, in place and out of place?"""
    whole = _bits(function(values))
    for length in lengths:
        for offset in (0, 1, 3):
            moved = np.empty(length + offset, np.float32)[offset:]
            moved[...] = values[:length]
            if not np.array_equal(_bits(function(moved)), whole[:length]):
                return False
            function(moved, out=moved)
            if not np.array_equal(_bits(moved), whole[:length]):
                return False
    return True


def reduction_holds(function: Callable[[F32], F32], rows: F32) -> bool:
    """Does ``function`` [R, C] → [R] give a row the same bits alone, among others, strided and misaligned?"""
    whole = _bits(function(rows))
    count, width = rows.shape
    for row in range(count):
        if _bits(function(rows[row : row + 1]))[0] != whole[row]:
            return False
    apart = np.empty((count, width + 3), np.float32)[:, 1 : width + 1]
    apart[...] = rows
    return bool(np.array_equal(_bits(function(apart)), whole))


def ascending_sum_holds(parts: F32) -> bool:
    """Is a sum over axis 2 of [A, R, splits, D] the plain one, from zero in ascending order?"""
    total = np.zeros((*parts.shape[:2], parts.shape[3]), np.float32)
    for split in range(parts.shape[2]):
        total = total + parts[:, :, split]
    return bool(np.array_equal(_bits(np.add.reduce(parts, axis=2, initial=np.float32(0.0))), _bits(total)))


@functools.cache
def check_operators() -> None:
    """Check numpy's operators as the engine uses them; takes a few milliseconds, once per process.

    Raises:
        DeviceError: one of them is not exact on this machine; names it.
    """
    rng = np.random.default_rng(7)
    values = (rng.standard_normal(64) * 12).astype(np.float32)
    with np.errstate(all="ignore"):
        for function in ELEMENTWISE:
            if not elementwise_holds(function, np.abs(values) if function is not np.exp else values):
                raise DeviceError(f"numpy's {function.__name__} is not exact on this machine")
        for width in (64, 128, 192, 256, 640):
            rows = rng.standard_normal((5, width)).astype(np.float32)
            if not reduction_holds(lambda x: np.add.reduce(x, axis=-1), rows):
                raise DeviceError("numpy's row sum is not exact on this machine")
            if not reduction_holds(lambda x: np.vecdot(x, x), rows):
                raise DeviceError("numpy's vecdot is not exact on this machine")
        for shape in ((1, 4, 1, 256), (1, 4, 3, 256), (2, 8, 17, 64), (1, 8, 40, 32)):
            if not ascending_sum_holds(rng.standard_normal(shape).astype(np.float32)):
                raise DeviceError("numpy's sum over an outer axis is not in ascending order on this machine")
