"""Preprocessed pictures without pixels, for tests and benchmarks that run on the fake engine."""

from __future__ import annotations

import numpy as np

from luce.engines.seam import PatchImage

__all__ = ["make_picture"]


def make_picture(name: bytes, grid: tuple[int, int] = (4, 4), merge: int = 2, patch: int = 2) -> PatchImage:
    """A picture whose digest is ``name``: ``grid`` patches of zeros, merged ``merge`` x ``merge`` into one row."""
    height, width = grid
    return PatchImage(
        values=np.zeros((height * width, 3 * patch * patch), np.float32),
        grid=grid,
        digest=name,
        num_tokens=height * width // merge**2,
    )
