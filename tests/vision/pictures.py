"""Pictures for tests: ordinary ones by Pillow, odd and hostile ones byte by byte."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

__all__ = ["bmp", "encode", "gradient", "noise", "png", "png_chunk", "png_header"]


def noise(height: int, width: int, seed: int = 0, channels: int = 3) -> npt.NDArray[np.uint8]:
    shape = (height, width, channels) if channels > 1 else (height, width)
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def gradient(height: int, width: int) -> npt.NDArray[np.uint8]:
    """Red grows to the right, green downwards; no two corners are alike."""
    y, x = np.mgrid[0:height, 0:width]
    red = x * 255 // max(width - 1, 1)
    green = y * 255 // max(height - 1, 1)
    return np.stack([red, green, (red + green) // 3], -1).astype(np.uint8)


def encode(pixels: Any, kind: str = "PNG", **options: Any) -> bytes:
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def png_chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png_header(width: int, height: int, depth: int = 8, colour: int = 2) -> bytes:
    return png_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0))


def png(width: int, height: int, rows: bytes, depth: int = 8, colour: int = 2, *before: bytes) -> bytes:
    """A PNG of raw rows (each with its filter byte); ``before`` are chunks in front of the pixels."""
    head = b"\x89PNG\r\n\x1a\n" + png_header(width, height, depth, colour) + b"".join(before)
    return head + png_chunk(b"IDAT", zlib.compress(rows)) + png_chunk(b"IEND", b"")


def bmp(pixels: npt.NDArray[np.uint8]) -> bytes:
    """Uncompressed, so that files of two pictures differ exactly where the pictures do."""
    return encode(pixels, "BMP")
