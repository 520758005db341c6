"""Format and size of a picture from its first bytes, before any decoder sees it.

A file of a few bytes can declare a canvas of gigabytes, and some decoders reserve it on opening. So the size is read
here, from the headers of the five formats that are accepted, and checked first.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

__all__ = ["MAX_SEGMENTS", "HeaderError", "image_header", "jpeg_segments"]

_JPEG_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""Start-of-frame markers, which hold the size."""
_JPEG_BARE = frozenset((0x01, *range(0xD0, 0xD9)))
"""Markers without a length."""

_OTHERS = (
    (b"II*\0", "TIFF"),
    (b"MM\0*", "TIFF"),
    (b"%PDF", "PDF"),
    (b"%!PS", "EPS"),
    (b"8BPS", "PSD"),
    (b"\0\0\1\0", "ICO"),
    (b"\xff\x0a", "JPEG XL"),
    (b"\0\0\0\x0cjP", "JPEG 2000"),
    (b"<svg", "SVG"),
    (b"<?xml", "SVG or XML"),
)


class HeaderError(ValueError):
    """Not one of the accepted formats, or its header is broken; says which."""


def image_header(data: bytes) -> tuple[str, int, int]:
    """("PNG" | "JPEG" | "WebP" | "GIF" | "BMP", width, height) as the file declares them.

    Raises:
        HeaderError: another format, or a broken header.
    """
    try:
        if data.startswith(b"\x89PNG\r\n\x1a\n"):
            if data[12:16] != b"IHDR":
                raise HeaderError("PNG without a header chunk")
            return "PNG", *struct.unpack_from(">II", data, 16)
        if data.startswith(b"\xff\xd8"):
            return "JPEG", *_jpeg(data)
        if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
            return "WebP", *_webp(data)
        if data.startswith((b"GIF87a", b"GIF89a")):
            return "GIF", *_gif(data)
        if data.startswith(b"BM"):
            return "BMP", *_bmp(data)
    except (struct.error, IndexError):
        raise HeaderError("the file ends within its header") from None
    raise HeaderError(f"{_name(data)}; supported are PNG, JPEG, WebP, GIF and BMP")


def _name(data: bytes) -> str:
    if not data:
        return "the file is empty"
    for magic, name in _OTHERS:
        if data.lstrip().startswith(magic) or data.startswith(magic):
            return f"{name} is not supported"
    if data[4:8] == b"ftyp":
        return "AVIF, HEIF and video are not supported"
    return "the format is not recognised"


MAX_SEGMENTS = 65_536
"""Parts of a file that are stepped over in search of its size; real files have some dozens."""


def _jpeg(data: bytes) -> tuple[int, int]:
    for marker, place, _ in jpeg_segments(data):
        if marker in _JPEG_FRAMES:
            height, width = struct.unpack_from(">HH", data, place + 5)
            return width, height
        if marker == 0xDA:
            break
    raise HeaderError("JPEG without a frame header")


def jpeg_segments(data: bytes) -> Iterator[tuple[int, int, int]]:
    """(marker, start, end) of a JPEG's segments up to its first scan, or its end.

    Raises:
        HeaderError: what follows a segment is none, or there are too many.
        IndexError, struct.error: the file ends within one.
    """
    place = 2
    for _ in range(MAX_SEGMENTS):
        if data[place] != 0xFF:
            raise HeaderError("JPEG with a broken header")
        marker = data[place + 1]
        if marker == 0xFF:
            place += 1
        elif marker in _JPEG_BARE:
            place += 2
        elif marker == 0xD9:
            return
        else:
            end = place + 2 + max(struct.unpack_from(">H", data, place + 2)[0], 2)
            yield marker, place, end
            if marker == 0xDA:
                return
            place = end
    raise HeaderError(f"JPEG of over {MAX_SEGMENTS} segments before its first scan")


def _webp(data: bytes) -> tuple[int, int]:
    kind = data[12:16]
    if kind == b"VP8X":
        return 1 + int.from_bytes(data[24:27], "little"), 1 + int.from_bytes(data[27:30], "little")
    if kind == b"VP8L":
        bits = struct.unpack_from("<I", data, 21)[0]
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    if kind == b"VP8 ":
        width, height = struct.unpack_from("<HH", data, 26)
        return width & 0x3FFF, height & 0x3FFF
    raise HeaderError("WebP with a broken header")


def _gif(data: bytes) -> tuple[int, int]:
    """The canvas, widened by a first frame that reaches over it (decoders widen it, too)."""
    width, height = struct.unpack_from("<HH", data, 6)
    place = 13 + (3 << (data[10] & 7) + 1 if data[10] & 0x80 else 0)
    blocks = 0
    while data[place] == 0x21:
        place += 2
        while data[place]:
            place += 1 + data[place]
            blocks += 1
            if blocks > MAX_SEGMENTS:
                raise HeaderError(f"GIF with over {MAX_SEGMENTS} blocks before its first frame")
        place += 1
    if data[place] == 0x2C:
        left, top, wide, high = struct.unpack_from("<HHHH", data, place + 1)
        width, height = max(width, left + wide), max(height, top + high)
    return width, height


def _bmp(data: bytes) -> tuple[int, int]:
    if struct.unpack_from("<I", data, 14)[0] == 12:
        width, height = struct.unpack_from("<HH", data, 18)
        return width, height
    width, height = struct.unpack_from("<ii", data, 18)
    return abs(width), abs(height)
