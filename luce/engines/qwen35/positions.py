"""M-RoPE position ids of a prompt (spec qwen35 §10)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from luce.engines.seam import ImageSpan

__all__ = ["mrope_positions"]


def mrope_positions(
    num_tokens: int, spans: Sequence[ImageSpan], grids: Sequence[tuple[int, int]], merge: int
) -> tuple[npt.NDArray[np.int32], int]:
    """Positions (t, h, w) of every token, and the delta for tokens generated after them.

    Text advances all three by one. An image of gh x gw patches stands still in t, counts its merged rows in h
    and columns in w, and advances the position by max(gh, gw) / merge after it. Images are told apart by their
    spans, never by runs of equal ids, so that neighbours without a token between them work.

    Args:
        num_tokens: T, image rows included.
        spans: where the images stand, in order; ``span.image`` indexes ``grids``.
        grids: (gh, gw) in patches per image.
        merge: side of a merge block.

    Returns:
        [3, T] positions and the delta: a token at place n >= T has t = h = w = n + delta.
    """
    positions = np.empty((3, num_tokens), np.int32)
    place = current = 0
    for span in spans:
        rows, columns = (side // merge for side in grids[span.image])
        assert span.start >= place and span.length == rows * columns, (span, rows, columns)
        ahead = span.start - place
        positions[:, place : span.start] = np.arange(current, current + ahead)
        current += ahead
        place = span.start + span.length
        positions[0, span.start : place] = current
        positions[1, span.start : place] = current + np.repeat(np.arange(rows), columns)
        positions[2, span.start : place] = current + np.tile(np.arange(columns), rows)
        current += max(rows, columns)
    positions[:, place:] = np.arange(current, current + num_tokens - place)
    return positions, current + max(num_tokens - place, 0) - num_tokens
