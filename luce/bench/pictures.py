"""Pictures as files: no two of a run alike, cheap to make and to decode."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

__all__ = ["png"]

CELLS = 16
"""Coloured cells along each side."""


def png(width: int, height: int, seed: int = 0) -> bytes:
    """A PNG file of random coloured cells."""
    colours = np.random.default_rng(seed).integers(0, 256, (CELLS, CELLS, 3)).astype(np.uint8)
    out = io.BytesIO()
    Image.fromarray(colours).resize((width, height), Image.Resampling.NEAREST).save(
        out, "PNG", compress_level=1
    )
    return out.getvalue()
