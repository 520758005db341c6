"""Weight matrices packed for exact row-tile products.

A weight ``W [out, in]`` is stored transposed in panels ``[P, in, n]`` of n output columns. Each panel times a row tile
is one small BLAS call of fixed shape: small enough that OpenBLAS does not repack the weights on each call (its
small-matrix kernels stop at m·n·k = 10^6), and narrow enough that the kernel reads a panel front to back. That makes
decoding, which is bound by reading the weights, several times faster than one wide call.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from luce.compute.tiles import ONE_ROW, TILE, Heights, probe_operand, safe_heights, tile_spans

__all__ = ["PackedMatrix", "PanelArena", "forget_checks", "packed_floats"]

F32 = npt.NDArray[np.float32]

SMALL_PRODUCT = 1_000_000
"""m·n·k up to which OpenBLAS uses its small-matrix kernels."""

_checked: dict[tuple[int, int], Heights] = {}
"""Verified tile heights by panel shape (K, n): once per process, since the kernel cannot change under it."""


def forget_checks() -> None:
    """Check every shape again when it is packed next (tests)."""
    _checked.clear()


def panel_width(depth: int) -> int:
    """Columns of a panel for ``depth`` inputs: 64, or 32 where only that makes the tile a small product."""
    return 32 if TILE * 64 * depth > SMALL_PRODUCT >= TILE * 32 * depth else 64


def heights_for(depth: int, width: int) -> Heights:
    """The interchangeable tile heights of panels [depth, width], checked bit for bit once per process."""
    key = (depth, width)
    if key not in _checked:
        _checked[key] = safe_heights(probe_operand(depth, width))
    return _checked[key]


def packed_floats(out: int, depth: int) -> int:
    """Floats that the panels of a weight [out, depth] take."""
    width = panel_width(depth)
    return -(-out // width) * width * depth


class PanelArena:
    """One piece of memory for all panels of a model, so that the system can back it with huge pages."""

    def __init__(self, floats: int) -> None:
        self._memory: F32 = np.empty(floats, np.float32)
        self._used = 0

    def take(self, shape: tuple[int, int, int]) -> F32:
        """The next panels of ``shape``; uninitialised."""
        size = shape[0] * shape[1] * shape[2]
        assert self._used + size <= len(self._memory), "the arena is as large as all matrices together"
        self._used += size
        return self._memory[self._used - size : self._used].reshape(shape)


class PackedMatrix:
    """``x @ W.T`` for rows x, exact per row.

    Args:
        parts: weights [out_i, in], float32, stacked along their outputs into one product.
        arena: where the panels go; None: memory of their own.
        scale: [in], multiplies the input's columns (a norm's scale, taken into the weights).
    """

    def __init__(self, *parts: F32, arena: PanelArena | None = None, scale: F32 | None = None) -> None:
        depth = parts[0].shape[1]
        assert all(part.shape[1] == depth and part.dtype == np.float32 for part in parts)
        self.depth = depth
        self.out = sum(len(part) for part in parts)
        self.panel = panel_width(depth)
        count = -(-self.out // self.panel)
        self.width = count * self.panel
        """Columns of an output buffer: ``out`` rounded up to whole panels; the padding columns are zero."""
        shape = (count, depth, self.panel)
        self.panels: F32 = np.empty(shape, np.float32) if arena is None else arena.take(shape)
        self.panels[-1] = 0.0
        at = 0
        for part in parts:
            self._fill(part if scale is None else part * scale, at)
            at += len(part)
        self.heights = heights_for(depth, self.panel)

    def _fill(self, part: F32, at: int) -> None:
        columns = np.arange(at, at + len(part))
        for index in range(columns[0] // self.panel, columns[-1] // self.panel + 1):
            low, high = max(index * self.panel, at), min((index + 1) * self.panel, at + len(part))
            self.panels[index, :, low - index * self.panel : high - index * self.panel] = part[
                low - at : high - at
            ].T

    @property
    def nbytes(self) -> int:
        return self.panels.nbytes

    @property
    def tiled(self) -> bool:
        """False where BLAS failed the check and rows go one at a time."""
        return self.heights != ONE_ROW

    def columns(self, sizes: Sequence[int]) -> tuple[slice, ...]:
        """Column slices of the output for consecutive parts of the given sizes."""
        ends = np.cumsum([0, *sizes])
        return tuple(slice(int(low), int(high)) for low, high in itertools.pairwise(ends))

    def __call__(self, x: F32, out: F32, rows: int) -> None:
        """``out[:rows, :self.out] = x[:rows] @ W.T``.

        x [>= padded(rows), in], C-contiguous, and out [>= padded(rows), >= width], float32. Rows past ``rows`` are
        padding: whatever they hold is read, and their outputs overwritten. Never raises for NaN.
        """
        panels = self.panels
        count, depth, panel = panels.shape
        if out.shape[1] != self.width:
            out = out[:, : self.width]
        for first, tiles, height in tile_spans(rows, self.heights):
            end = first + tiles * height
            if tiles == 1:
                target = out[first:end].reshape(height, count, panel).transpose(1, 0, 2)
                np.matmul(x[first:end], panels, out=target)
            else:
                np.matmul(
                    x[first:end].reshape(tiles, 1, height, depth),
                    panels,
                    out=out[first:end].reshape(tiles, height, count, panel).transpose(0, 2, 1, 3),
                )
