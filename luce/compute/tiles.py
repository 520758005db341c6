"""Row tiles: the shapes in which BLAS is called, so that a row's bits never depend on its neighbours.

A product ``x[rows, K] @ B[K, n]`` is computed in tiles of a few rows, each one BLAS call of fixed shape; missing rows
are padding. On the kernels tried (design §6), tiles of 8 rows give every row the same bits wherever it stands in the
tile and whatever stands beside it, also NaN. Tiles of 4 rows do the same and often yield *the same bits as tiles of
8*, at half the price for small batches. :func:`safe_heights` finds out, for the shape and memory layout at hand,
which heights are interchangeable; where not even 8 holds, rows go one at a time.
"""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt

__all__ = ["HEIGHTS", "ONE_ROW", "TILE", "Heights", "padded", "probe_operand", "safe_heights", "tile_spans"]

F32 = npt.NDArray[np.float32]
Heights = tuple[int, ...]

TILE = 8
"""Rows of the largest tile; row buffers are padded to a multiple of it."""
HEIGHTS: Heights = (4, TILE)
ONE_ROW: Heights = (1,)
"""The fallback: a row at a time needs no property of BLAS but that equal calls give equal bits."""


def padded(rows: int) -> int:
    """``rows`` rounded up to whole tiles: how many rows a buffer needs."""
    return -(-rows // TILE) * TILE


def tile_spans(rows: int, heights: Heights) -> tuple[tuple[int, int, int], ...]:
    """How ``rows`` rows are covered: (first row, tiles, height) of each run of equal tiles.

    Rows past the end that a tile covers are padding; they stay below ``padded(rows)``.
    """
    return _tile_spans(rows, heights)


@functools.lru_cache(maxsize=4096)
def _tile_spans(rows: int, heights: Heights) -> tuple[tuple[int, int, int], ...]:
    largest = heights[-1]
    tiles, rest = divmod(rows, largest)
    spans = [(0, tiles, largest)] if tiles else []
    if rest:
        spans.append((rows - rest, 1, next(height for height in heights if height >= rest)))
    return tuple(spans)


def _same_bits(a: F32, b: F32) -> bool:
    return bool(np.array_equal(a.view(np.uint32), b.view(np.uint32)))


class _Probe:
    """Calls ``x @ b`` at one height, from operands at a chosen offset in memory."""

    def __init__(self, b: F32) -> None:
        self.b = b
        self.depth, self.width = b.shape

    def __call__(self, x: F32, offset: int = 0) -> F32:
        """The product of the rows x [h, K], with 4-byte ``offset`` steps off the natural alignment."""
        # Rows stand apart by a stride of their own (never for one row: its stride means nothing).
        moved = np.empty((len(x), self.depth + 16), np.float32)[:, offset : offset + self.depth]
        moved[...] = x
        # An output with a row stride of its own, as the engine's buffers have.
        out = np.empty((len(x), self.width + 16), np.float32)[:, offset : offset + self.width]
        return np.matmul(moved, self.b, out=out)

    def places_hold(self, x: F32, reference: F32) -> bool:
        """Does each row keep its bits in every place, beside NaN and infinity, and at every alignment?"""
        height = len(x)
        for place in range(height):
            if not _same_bits(self(np.roll(x, place, axis=0), place), np.roll(reference, place, axis=0)):
                return False
            for poison in (np.nan, np.inf):
                lone = np.full_like(x, poison)
                lone[place] = x[place]
                if not _same_bits(self(lone)[place], reference[place]):
                    return False
        return True


def _data(rows: int, columns: int, seed: int) -> F32:
    """Deterministic values of both signs over some 8 binary orders, so that any other summation order shows."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((rows, columns)) * np.exp2(rng.integers(-4, 5, (rows, columns)))
    return values.astype(np.float32)


def safe_heights(b: F32, seed: int = 0) -> Heights:
    """Tile heights that are bit for bit interchangeable for products with ``b`` [K, n], in its memory layout.

    Returns (4, 8), (8,), (4,) or, where no tile keeps a row's bits, (1,). The check takes well under a
    millisecond for common shapes; its data is deterministic.
    """
    probe = _Probe(b)
    x = _data(TILE, b.shape[0], seed)
    with np.errstate(all="ignore"):
        reference = probe(x)
        whole = probe.places_hold(x, reference)
        halves = np.concatenate([probe(x[:4]), probe(x[4:])])
        half = all(probe.places_hold(x[at : at + 4], halves[at : at + 4]) for at in (0, 4))
    if whole and half and _same_bits(halves, reference):
        return HEIGHTS
    if whole:
        return (TILE,)
    return (4,) if half else ONE_ROW


def probe_operand(depth: int, width: int, seed: int = 1) -> F32:
    """Deterministic [K, n] values for checking a shape before its weights exist."""
    return _data(depth, width, seed)
