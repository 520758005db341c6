"""Limits of picture files: truncation, damage, bombs, empty and extreme sizes."""

from __future__ import annotations

import io
import resource
import struct
import warnings
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from luce.errors import RequestError
from luce.vision.decode import DecodeLimits, check_image, decode_image
from tests.vision.pictures import encode, gradient, noise, png_chunk, png_header


def refused(data: bytes, match: str, **options: Any) -> RequestError:
    with pytest.raises(RequestError, match=match) as found:
        decode_image(data, field="messages[0].content[1].image_url.url", **options)
    error = found.value
    assert error.field == "messages[0].content[1].image_url.url" and error.status == 400
    assert error.message.startswith(error.field) and "\n" not in error.message and len(error.message) < 400
    return error


# -- limits and broken files ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP"])
def test_truncated_files_are_refused(kind: str) -> None:
    data = encode(noise(64, 64), kind)
    decode_image(data)
    for cut in sorted({1, 2, 10, 20, 30, len(data) // 4, len(data) // 2, len(data) * 3 // 4}):
        refused(data[:cut], "is (a broken|no supported image)")


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_damaged_files_decode_or_are_refused(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(["PNG", "JPEG", "WEBP", "GIF", "BMP"]))
    damaged = bytearray(encode(gradient(12, 20), kind))
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            pixels = decode_image(bytes(damaged), limits=DecodeLimits(max_pixels=1_000_000))
        except RequestError:
            return
    assert pixels.ndim == 3 and pixels.shape[2] == 3 and pixels.dtype == np.uint8


def webp_canvas(width: int, height: int) -> bytes:
    """An extended WebP whose canvas is far larger than its file."""
    body = encode(noise(8, 8), "WEBP", lossless=True)[12:]
    size = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    head = b"VP8X" + struct.pack("<I", 10) + b"\x02\0\0\0" + size
    return b"RIFF" + struct.pack("<I", 4 + len(head) + len(body)) + b"WEBP" + head + body


def jpeg_claiming(width: int, height: int) -> bytes:
    data = bytearray(encode(noise(8, 8), "JPEG"))
    place = data.index(b"\xff\xc0")
    struct.pack_into(">HH", data, place + 5, height, width)
    return bytes(data)


def bmp_claiming(width: int, height: int) -> bytes:
    data = bytearray(encode(noise(8, 8), "BMP"))
    struct.pack_into("<ii", data, 18, width, height)
    return bytes(data)


def gif_claiming(width: int, height: int, *, frame: bool) -> bytes:
    data = bytearray(encode(Image.fromarray(noise(8, 8)).convert("P"), "GIF"))
    place = data.index(b"\x2c\0\0\0\0") + 5 if frame else 6
    struct.pack_into("<HH", data, place, width, height)
    return bytes(data)


def blank_png(side: int) -> bytes:
    """A valid picture of one shade: a few kilobytes for any number of pixels."""
    compressor = zlib.compressobj(9)
    row = b"\0" * (1 + side // 8)
    pixels = b"".join([compressor.compress(row) for _ in range(side)]) + compressor.flush()
    return (
        b"\x89PNG\r\n\x1a\n"
        + png_header(side, side, 1, 0)
        + png_chunk(b"IDAT", pixels)
        + png_chunk(b"IEND", b"")
    )


BOMBS = {
    "png header": b"\x89PNG\r\n\x1a\n"
    + png_header(30000, 30000)
    + png_chunk(b"IDAT", zlib.compress(b"\0" * 99)),
    "png of 2^31": b"\x89PNG\r\n\x1a\n" + png_header(0x7FFFFFFF, 0x7FFFFFFF) + png_chunk(b"IDAT", b""),
    "blank png": blank_png(12000),
    "webp canvas": webp_canvas(16383, 16383),
    "jpeg": jpeg_claiming(65000, 65000),
    "bmp": bmp_claiming(30000, -30000),
    "bmp of 2^31": bmp_claiming(-0x80000000, -0x80000000),
    "gif canvas": gif_claiming(65000, 65000, frame=False),
    "gif frame": gif_claiming(65000, 65000, frame=True),
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_refused_before_decoding(name: str) -> None:
    """B33: a file of some kilobytes must not cost more than its own size."""
    assert len(BOMBS[name]) < 100_000
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(3):
        refused(BOMBS[name], r"is too large: \d+x\d+ pixels")
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 20_000, f"{grown} KiB"


def test_the_blank_png_is_valid() -> None:
    """Armed: without the limit it would decode."""
    found = decode_image(blank_png(1000), limits=DecodeLimits(max_pixels=1_000_000))
    assert found.shape == (1000, 1000, 3)
    refused(blank_png(1008), "1008x1008", limits=DecodeLimits(max_pixels=1_000_000))


def test_bounds_of_bytes_and_sides() -> None:
    data = encode(gradient(40, 64))
    refused(data, "has .* bytes; at most 10", limits=DecodeLimits(max_bytes=10))
    refused(data, "is too large: 64x40", limits=DecodeLimits(max_side=63))
    assert decode_image(data, limits=DecodeLimits(max_side=64, max_pixels=2560)).shape == (40, 64, 3)


def test_endless_scans_are_refused() -> None:
    """A progressive JPEG may repeat a scan of a few bytes thousands of times, each a pass over all pixels."""
    data = encode(noise(64, 64), "JPEG", progressive=True)
    start = data.index(b"\xff\xda")
    end = data.index(b"\xff\xda", start + 2)
    refused(data[:start] + data[start:end] * 200 + data[end:], "more than 100 scans")


@pytest.mark.parametrize(("width", "height"), [(0, 5), (5, 0)])
def test_empty_pictures_are_refused(width: int, height: int) -> None:
    data = b"\x89PNG\r\n\x1a\n" + png_header(width, height) + png_chunk(b"IDAT", zlib.compress(b""))
    refused(data, "is (empty|a broken PNG)")


@pytest.mark.parametrize(
    ("width", "height", "fits"), [(200, 1, True), (201, 1, False), (9, 2000, False), (10, 2000, True)]
)
def test_long_and_thin_pictures(width: int, height: int, fits: bool) -> None:
    data = encode(noise(height, width))
    if fits:
        assert decode_image(data).shape == (height, width, 3)
    else:
        refused(data, f"is too long and thin: {width}x{height} pixels; at most 200 to 1")


def test_a_picture_in_several_parts_is_its_first() -> None:
    """Phones write JPEG files with a second picture behind the first (MPO)."""
    buffer = io.BytesIO()
    first, second = (Image.fromarray(np.full((16, 16, 3), shade, np.uint8)) for shade in (40, 200))
    first.save(buffer, "MPO", save_all=True, append_images=[second])
    assert np.abs(decode_image(buffer.getvalue()).astype(int) - 40).max() < 4


def test_the_librarys_own_bound_does_not_get_in_the_way_of_a_higher_one() -> None:
    """It would warn over 89 million pixels and refuse over 179 million; files are bounded before it sees them."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Image._decompression_bomb_check((20_000, 20_000))
    wide = blank_png(15_000)
    assert check_image(wide, limits=DecodeLimits(max_pixels=300_000_000)) == ("PNG", 15_000, 15_000)
    refused(wide, "at most 50000000 pixels")
