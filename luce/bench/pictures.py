"""Pictures as files: no two of a run alike, cheap to make and to decode.

Cells of random colours, whose pixels are numbers of a palette. So pictures of one size differ in their palettes alone,
and all else, which takes 12 ms for a megapixel, is made once.
"""

from __future__ import annotations

import io
import struct
import zlib
from functools import lru_cache

import numpy as np
from PIL import Image

__all__ = ["png"]

CELLS = 16
"""Coloured cells along each side: as many as a palette has colours."""
KEPT = 64
"""Sizes."""
_NAME = b"PLTE"


def png(width: int, height: int, seed: int = 0) -> bytes:
    """A PNG file of random coloured cells."""
    colours = np.random.default_rng(seed).integers(0, 256, (CELLS * CELLS, 3)).astype(np.uint8).tobytes()
    before, behind = _around_palette(width, height)
    return before + colours + struct.pack(">I", zlib.crc32(_NAME + colours)) + behind


@lru_cache(maxsize=KEPT)
def _around_palette(width: int, height: int) -> tuple[bytes, bytes]:
    """What stands before the palette's colours, and behind their checksum."""
    numbers = Image.fromarray(np.arange(CELLS * CELLS, dtype=np.uint8).reshape(CELLS, CELLS))
    picture = numbers.resize((width, height), Image.Resampling.NEAREST)
    picture.putpalette(bytes(3 * CELLS * CELLS))
    out = io.BytesIO()
    picture.save(out, "PNG", compress_level=1)
    file = out.getvalue()
    start = file.index(_NAME) + len(_NAME)
    return file[:start], file[start + 3 * CELLS * CELLS + 4 :]
