"""Value changes between file forms and the canonical weights (spec qwen35 §16-18). All float32 to float32.

The arrays handed in are freshly loaded and owned by the caller, so conversions work in place where they can.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs
import numpy as np
import numpy.typing as npt

__all__ = [
    "ColumnsToGrouped",
    "Convert",
    "as_row",
    "columns_to_grouped",
    "flatten_rows",
    "neg_exp",
    "plus_one",
    "rows_to_grouped",
    "stack_experts",
    "sum_frames",
    "tiled_order",
]

F32 = npt.NDArray[np.float32]
Convert = Callable[[F32], F32]


def flatten_rows(w: F32) -> F32:
    """[n, …] to [n, rest]."""
    return w.reshape(len(w), -1)


def as_row(w: F32) -> F32:
    """[n] to [1, n]."""
    return w[None]


def plus_one(w: F32) -> F32:
    """Zero-centred RMS-norm weight to the scale that multiplies."""
    w += np.float32(1)
    return w


def neg_exp(a_log: F32) -> F32:
    """``-exp(A_log)``, rounded once from float64, so that it is the same on every machine."""
    return (-np.exp(a_log.astype(np.float64))).astype(np.float32)


def stack_experts(parts: Sequence[F32], shape: tuple[int, int, int]) -> F32:
    """One array [E, out, in] of its rows in parts: ``[out_i, in]`` expert by expert, or ``[E, out_i, in]`` of them all.
    Stand-ins give a stand-in."""
    stacked: Callable[[Sequence[F32], tuple[int, ...]], F32] | None = getattr(parts[0], "stacked", None)
    if stacked is not None:
        return stacked(parts, shape)
    if not any(part.size for part in parts):
        return np.empty(0, np.float32)
    if parts[0].ndim == 3:
        return np.concatenate(parts, axis=1)
    return np.concatenate(parts).reshape(shape)


def sum_frames(patch: F32) -> F32:
    """Patch embedding [d, 3, frames, p, p] to [d, 3·p·p] by adding up the frames, in order."""
    total = patch[:, :, 0].copy()
    for frame in range(1, patch.shape[2]):
        total += patch[:, :, frame]
    return total.reshape(len(patch), -1)


def tiled_order(key_heads: int, value_heads: int) -> npt.NDArray[np.intp]:
    """[Hv]: for each value head in grouped (canonical) order ``k·r + j``, its place ``j·Hk + k`` in a
    GGUF.
    """
    ratio = value_heads // key_heads
    return np.arange(value_heads, dtype=np.intp).reshape(ratio, key_heads).T.reshape(-1)


def rows_to_grouped(key_heads: int, value_heads: int, first: int = 0) -> Convert:
    """Permute the blocks of rows of value heads from GGUF to grouped order; rows before ``first`` stay."""

    def convert(w: F32) -> F32:
        if key_heads == value_heads:
            return w
        heads = w[first:].reshape(value_heads, -1)
        w[first:] = heads[tiled_order(key_heads, value_heads)].reshape(w[first:].shape)
        return w

    return convert


@attrs.frozen
class ColumnsToGrouped:
    """As :func:`rows_to_grouped` for the columns of the output projection [h, Hv·Dv]."""

    key_heads: int
    value_heads: int

    def __call__(self, w: F32) -> F32:
        if self.key_heads == self.value_heads:
            return w
        heads = w.reshape(len(w), self.value_heads, -1)
        order = tiled_order(self.key_heads, self.value_heads)
        return np.ascontiguousarray(heads[:, order].reshape(w.shape))


def columns_to_grouped(key_heads: int, value_heads: int) -> ColumnsToGrouped:
    """Permute the columns of the output projection from GGUF to grouped order."""
    return ColumnsToGrouped(key_heads, value_heads)
