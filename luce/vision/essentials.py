"""A picture file without what is no picture: only what says the pixels goes to the decoder.

Metadata are where small files become large ones (compressed text and colour profiles, EXIF directories whose entries
overlap) and where a broken block would refuse a good picture. So text, profiles, thumbnails, unknown extensions and
further frames are cut out here, before any decoder reads the file; of EXIF only the orientation is read.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

import attrs

from luce.vision.header import MAX_SEGMENTS, HeaderError, jpeg_segments
from luce.vision.orientation import exif_orientation

__all__ = ["Essentials", "essentials"]


@attrs.frozen
class Essentials:
    data: bytes = attrs.field(repr=False)
    """A file of the same format with the same pixels."""
    orientation: int = 1
    """1 to 8, as in EXIF."""
    depth: int = 8
    """Bits of a sample, of a PNG."""
    colour: int = 2
    """Colour type, of a PNG."""
    covered: tuple[int, int, int, int] | None = None
    """(left, top, right, bottom) of a GIF's first frame; what lies outside is transparent."""


def essentials(data: bytes, kind: str) -> Essentials:
    """What a decoder needs of a file whose header has been read.

    A file that ends too early or is broken goes through as it is, for the decoder to say so.

    Args:
        kind: as :func:`luce.vision.header.image_header` says.

    Raises:
        HeaderError: a kind of file within the format that is not supported, or one with too many parts.
    """
    reader = {"PNG": _png, "JPEG": _jpeg, "WebP": _webp, "GIF": _gif, "BMP": _bmp}[kind]
    try:
        return reader(data)
    except (struct.error, IndexError):
        return Essentials(data)


_CRITICAL = 0x20
"""Bit of a chunk name's first letter that is clear in chunks without which there is no picture."""


def _png(data: bytes) -> Essentials:
    depth, colour = data[24], data[25]
    pieces, place, kept, orientation = [data[:8]], 8, 8, 1
    for _ in range(MAX_SEGMENTS):
        length, name = struct.unpack_from(">I4s", data, place)
        end = place + 12 + length
        if end > len(data):
            break
        if name == b"IEND":
            pieces.append(data[kept:end])
            return Essentials(b"".join(pieces), orientation, depth, colour)
        if name[0] & _CRITICAL and name != b"tRNS":
            pieces.append(data[kept:place])
            kept = end
            body = memoryview(data)[place + 4 : end - 4]
            if name == b"eXIf" and zlib.crc32(body) == struct.unpack_from(">I", data, end - 4)[0]:
                orientation = exif_orientation(bytes(body[4:]))
        place = end
    else:
        raise HeaderError(f"PNG of over {MAX_SEGMENTS} chunks")
    return Essentials(b"".join([*pieces, data[kept:]]), orientation, depth, colour)


_JPEG_DROPPED = frozenset((*range(0xE0, 0xF0), 0xFE)) - {0xE0, 0xEE}
"""APPn and comments, but for JFIF and Adobe's, which say what the colours are."""
_JPEG_OTHER = {
    0xC3: "lossless",
    **dict.fromkeys((0xC5, 0xC6, 0xC7, 0xCD, 0xCE, 0xCF), "hierarchical"),
    0xCB: "lossless",
}


def _jpeg(data: bytes) -> Essentials:
    pieces, orientation, seen = [data[:2]], 1, False
    for marker, place, end in jpeg_segments(data):
        if marker == 0xDA:
            pieces.append(data[place:])
            return Essentials(b"".join(pieces), orientation)
        if marker in _JPEG_OTHER:
            raise HeaderError(f"{_JPEG_OTHER[marker]} JPEG is not supported; use baseline or progressive")
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC) and data[place + 4] != 8:
            raise HeaderError(f"JPEG of {data[place + 4]} bits a sample is not supported; use 8")
        if marker not in _JPEG_DROPPED:
            pieces.append(data[place:end])
        elif marker == 0xE1 and not seen and data[place + 4 : place + 10] == b"Exif\0\0":
            orientation, seen = exif_orientation(data[place + 4 : end]), True
    return Essentials(data, orientation)


_WEBP_ALPHA, _WEBP_ANIMATED = 0x10, 0x02


def _webp(data: bytes) -> Essentials:
    if data[12:16] != b"VP8X":
        return Essentials(data)
    animated = bool(data[20] & _WEBP_ANIMATED)
    pictures = (b"ANIM", b"ANMF") if animated else (b"ALPH", b"VP8 ", b"VP8L")
    found: dict[bytes, bytes] = {}
    orientation = 1
    for name, start, end in _riff_chunks(data):
        if name in pictures and name not in found:
            found[name] = data[start:end]
        elif name == b"EXIF" and b"EXIF" not in found:
            orientation = exif_orientation(data[start + 8 : end])
            found[b"EXIF"] = b""
    # What an animation's first frame leaves free is transparent, whether or not the file speaks of transparency.
    flags = _WEBP_ALPHA | _WEBP_ANIMATED if animated else data[20] & _WEBP_ALPHA
    body = b"".join(
        (
            b"VP8X\x0a\0\0\0",
            bytes((flags,)),
            b"\0\0\0",
            data[24:30],
            *(found.get(name, b"") for name in pictures),
        )
    )
    head = struct.pack("<4sI4s", b"RIFF", len(body) + 4, b"WEBP")
    return Essentials(head + body, orientation)


def _riff_chunks(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """(name, start, end) of the chunks behind the first one."""
    place = 30
    for _ in range(MAX_SEGMENTS):
        if place + 8 > len(data):
            return
        name, length = struct.unpack_from("<4sI", data, place)
        end = place + 8 + length + (length & 1)
        yield name, place, end
        place = end
    raise HeaderError(f"WebP of over {MAX_SEGMENTS} chunks")


def _gif(data: bytes) -> Essentials:
    head = 13 + (3 << (data[10] & 7) + 1 if data[10] & 0x80 else 0)
    place, control = head, b""
    while data[place] == 0x21:  # their number is bounded where the header is read
        start, place = place, place + 2
        while data[place]:
            place += 1 + data[place]
        place += 1
        if data[start + 1] == 0xF9:
            control = data[start:place]
    if data[place] != 0x2C:
        return Essentials(data)
    left, top, width, height = struct.unpack_from("<HHHH", data, place + 1)
    whole = data if place == head + len(control) else b"".join((data[:head], control, data[place:]))
    return Essentials(whole, covered=(left, top, left + width, top + height))


MAX_RUNS = 2 * 1024 * 1024
"""Bytes of a run-length encoded BMP: the library unpacks it in Python, at half a second a megabyte."""


def _bmp(data: bytes) -> Essentials:
    """The library takes indices for shades where a short palette looks like all greys; one that claims 256 does not."""
    start, size = struct.unpack_from("<II", data, 10)
    (bits,) = struct.unpack_from("<H", data, 28)
    if size >= 40 and struct.unpack_from("<I", data, 30)[0] in (1, 2) and len(data) > MAX_RUNS:
        raise HeaderError(f"run-length encoded BMP of over {MAX_RUNS} bytes; send it as PNG")
    if size < 40 or bits not in (4, 8) or start == 14 + size:
        return Essentials(data)
    return Essentials(b"".join((data[:46], struct.pack("<I", 256), data[50:])))
