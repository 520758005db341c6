"""Every kind of sample that the five formats can hold, put together byte by byte, against numbers worked out here."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from luce.errors import RequestError
from luce.vision.decode import decode_image
from tests.vision.pictures import encode, noise, png, png_chunk

Array = npt.NDArray[Any]


def on_white(colours: Array, alpha: Array, most: int) -> Array:
    """Exact: halves cannot happen, as ``most`` is odd."""
    c, a = colours.astype(object), alpha.astype(object)[..., None]
    mixed = c * a + most * (most - a)
    whole = most * most
    return ((mixed * 255 * 2 + whole) // (2 * whole)).astype(np.uint8)


def samples(height: int, width: int, channels: int, depth: int) -> Array:
    """All the values that matter, and noise."""
    most = (1 << depth) - 1
    found = np.random.default_rng(depth).integers(0, most + 1, (height, width, channels)).astype(np.int64)
    found[0, 0], found[0, 1] = 0, most
    found[1, :4, -1] = [0, most, most // 2, 1]
    return found


def packed(values: Array, depth: int) -> bytes:
    """Rows [H, W, C] as a PNG stores them, without filters."""
    rows = []
    for row in values.reshape(len(values), -1):
        bits = "".join(format(int(value), f"0{depth}b") for value in row)
        bits += "0" * (-len(bits) % 8)
        rows.append(b"\0" + int(bits, 2).to_bytes(len(bits) // 8, "big"))
    return b"".join(rows)


PASSES = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
"""(x, y, step x, step y) of Adam7."""


def png_of(values: Array, depth: int, colour: int, *chunks: bytes, interlaced: bool = False) -> bytes:
    height, width = values.shape[:2]
    if not interlaced:
        return png(width, height, packed(values, depth), depth, colour, *chunks)
    parts = [values[y::down, x::across] for x, y, across, down in PASSES]
    rows = b"".join(packed(part, depth) for part in parts if part.size)
    head = png_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 1))
    body = png_chunk(b"IDAT", zlib.compress(rows)) + png_chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + head + b"".join(chunks) + body


@pytest.mark.parametrize("interlaced", [False, True])
@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("depth", [1, 2, 4, 8, 16])
def test_png_grey(depth: int, keyed: bool, interlaced: bool) -> None:
    values = samples(9, 13, 1, depth)
    most = (1 << depth) - 1
    key = int(values[5, 5, 0])
    expected = ((values * 255 * 2 + most) // (2 * most)).astype(np.uint8).repeat(3, -1)
    chunks = []
    if keyed:
        expected[(values == key).all(-1)] = 255
        chunks = [png_chunk(b"tRNS", struct.pack(">H", key))]
    assert np.array_equal(decode_image(png_of(values, depth, 0, *chunks, interlaced=interlaced)), expected)


@pytest.mark.parametrize("interlaced", [False, True])
@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("depth", [8, 16])
def test_png_colours(depth: int, keyed: bool, interlaced: bool) -> None:
    """The key of 16-bit colours is compared in all its bits: a neighbour that looks the same stays."""
    values = samples(9, 13, 3, depth)
    most = (1 << depth) - 1
    values[3, 3] = values[5, 5]
    values[3, 3, 0] ^= 1
    expected = ((values * 255 * 2 + most) // (2 * most)).astype(np.uint8)
    chunks = []
    if keyed:
        expected[(values == values[5, 5]).all(-1)] = 255
        chunks = [png_chunk(b"tRNS", struct.pack(">HHH", *map(int, values[5, 5])))]
        assert (expected[5, 5] == 255).all() and not (expected[3, 3] == 255).all()
    assert np.array_equal(decode_image(png_of(values, depth, 2, *chunks, interlaced=interlaced)), expected)


@pytest.mark.parametrize("interlaced", [False, True])
@pytest.mark.parametrize(("colour", "channels"), [(4, 2), (6, 4)])
@pytest.mark.parametrize("depth", [8, 16])
def test_png_with_alpha(depth: int, colour: int, channels: int, interlaced: bool) -> None:
    values = samples(9, 13, channels, depth)
    expected = on_white(values[..., :-1], values[..., -1], (1 << depth) - 1)
    found = decode_image(png_of(values, depth, colour, interlaced=interlaced))
    assert np.array_equal(found, np.broadcast_to(expected, (9, 13, 3)))


def test_every_shade_with_every_alpha() -> None:
    shade, alpha = np.meshgrid(np.arange(256), np.arange(256))
    values = np.stack([shade, alpha], -1)
    expected = np.round((shade * alpha + 255.0 * (255 - alpha)) / 255).astype(np.uint8)
    assert np.array_equal(decode_image(png_of(values, 8, 4))[..., 0], expected)


def test_every_shade_of_16_bits() -> None:
    """Also where the arithmetic has the least room: nearly opaque, nearly clear."""
    values = np.arange(65536).reshape(256, 256, 1)
    expected = ((values * 255 * 2 + 65535) // (2 * 65535)).astype(np.uint8)
    assert np.array_equal(decode_image(png_of(values, 16, 0))[..., :1], expected)
    for alpha in (0, 1, 2, 32767, 32768, 65533, 65534, 65535):
        both = np.concatenate([values, np.full_like(values, alpha)], -1)
        found = decode_image(png_of(both, 16, 4))[..., :1]
        assert np.array_equal(found, on_white(values, both[..., 1], 65535)), alpha


@pytest.mark.parametrize("alphas", [None, "one", "table", "long"])
@pytest.mark.parametrize("depth", [1, 2, 4, 8])
def test_png_palettes(depth: int, alphas: str | None) -> None:
    count = 1 << depth
    values = samples(9, 13, 1, depth)
    colours = noise(1, count, seed=depth)[0]
    alpha = np.full(count, 255)
    if alphas == "one":
        alpha[1] = 0
    elif alphas is not None:
        alpha[: count // 2 or 1] = np.arange(count // 2 or 1) * 3 % 256
    chunks = [png_chunk(b"PLTE", colours.tobytes())]
    if alphas is not None:
        extra = b"\x80" * 500 if alphas == "long" else b""
        chunks.append(png_chunk(b"tRNS", alpha.astype(np.uint8).tobytes() + extra))
    expected = on_white(colours, alpha, 255)[values[..., 0]]
    assert np.array_equal(decode_image(png_of(values, depth, 3, *chunks)), expected)


def test_a_large_picture_is_converted_in_bands() -> None:
    """More rows than one band holds, turned and not."""
    values = np.random.default_rng(0).integers(0, 256, (700, 800, 4)).astype(np.uint8)
    expected = on_white(values[..., :3].astype(int), values[..., 3].astype(int), 255)
    assert np.array_equal(decode_image(encode(values, compress_level=0)), expected)


# -- JPEG -------------------------------------------------------------------------------------------------------------

INKS = (200, 30, 90, 60)


def cmyk_jpeg(adobe: int | None) -> bytes:
    """Four flat components, stored as 255 minus the ink; with Adobe's marker and its transform, or without."""
    data = encode(Image.new("CMYK", (16, 16), INKS), "JPEG", quality=100)
    place = data.index(b"\xff\xee")
    assert data[place + 4 : place + 9] == b"Adobe" and data[place + 15] == 0, "the trap"
    end = place + 2 + int.from_bytes(data[place + 2 : place + 4], "big")
    if adobe is None:
        return data[:place] + data[end:]
    return data[: place + 15] + bytes((adobe,)) + data[place + 16 :]


@pytest.mark.parametrize("adobe", [0, None])
def test_cmyk_jpeg_is_inverted(adobe: int | None) -> None:
    expected = [(255 - ink) * (255 - INKS[3]) / 255 for ink in INKS[:3]]
    assert np.abs(decode_image(cmyk_jpeg(adobe)) - np.array(expected)).max() <= 2


def test_ycck_jpeg() -> None:
    y, cb, cr, black = (255 - ink for ink in INKS)
    colours = [
        y + 1.402 * (cr - 128),
        y - 0.344136 * (cb - 128) - 0.714136 * (cr - 128),
        y + 1.772 * (cb - 128),
    ]
    expected = np.array([255 - min(max(one, 0), 255) for one in colours]) * black / 255
    found = decode_image(cmyk_jpeg(2))
    assert np.abs(found - expected).max() <= 2
    assert np.abs(decode_image(cmyk_jpeg(0)).astype(int) - found).max() > 20, "the trap: the transform shows"


def test_grey_and_rgb_jpeg() -> None:
    grey = decode_image(encode(np.full((16, 16), 77, np.uint8), "JPEG", quality=100))
    assert np.abs(grey.astype(int) - 77).max() <= 1
    stored = encode(Image.new("YCbCr", (16, 16), (120, 90, 200)), "JPEG", quality=100, subsampling=0)
    assert stored[2:4] == b"\xff\xe0", "JFIF, which goes before Adobe's marker"
    stored = stored[:2] + stored[4 + int.from_bytes(stored[4:6], "big") :]
    marker = b"\xff\xee\0\x0eAdobe\0\x64\0\0\0\0\0"  # transform 0: the components are RGB as they stand
    found = decode_image(stored[:2] + marker + stored[2:])
    assert np.abs(found - np.array([120, 90, 200])).max() <= 2
    assert np.abs(decode_image(stored).astype(int) - found).max() > 20, "the trap: the marker shows"


# -- GIF --------------------------------------------------------------------------------------------------------------


def gif(
    indices: Array, palette: bytes, *, canvas: tuple[int, int], at: tuple[int, int] = (0, 0), clear: int | None = None,
    local: bytes = b"", before: bytes = b"",
) -> bytes:  # fmt: skip
    """A frame of 3-bit codes, each written after a clear code, so that no table is needed."""
    height, width = indices.shape
    bits, codes = "", [4]
    for index in indices.reshape(-1):
        codes += [int(index), 4]
    bits = "".join(format(code, "03b")[::-1] for code in [*codes, 5])
    bits += "0" * (-len(bits) % 8)
    data = bytes(int(bits[i : i + 8][::-1], 2) for i in range(0, len(bits), 8))
    assert len(data) < 256
    control = b"" if clear is None else b"\x21\xf9\x04\x01\0\0" + bytes((clear,)) + b"\0"
    size = lambda table: len(table) // 6  # noqa: E731 - 4 colours: 1, 2 colours: 0 in the header's terms
    return (
        b"GIF89a" + struct.pack("<HHBBB", canvas[1], canvas[0], 0x80 | size(palette) - 1, 0, 0) + palette + before
        + control + b"\x2c" + struct.pack("<HHHH", at[1], at[0], width, height)
        + bytes((0x80 | size(local) - 1,) if local else (0,)) + local
        + b"\x02" + bytes((len(data),)) + data + b"\0;"
    )  # fmt: skip


FOUR = bytes([10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 110, 120])


def test_gif_frames() -> None:
    indices = np.array([[0, 1, 2], [3, 2, 1]])
    colours = np.frombuffer(FOUR, np.uint8).reshape(4, 3)
    assert np.array_equal(decode_image(gif(indices, FOUR, canvas=(2, 3))), colours[indices])
    other = bytes(255 - one for one in FOUR)
    found = decode_image(gif(indices, FOUR, canvas=(2, 3), local=other))
    assert np.array_equal(found, 255 - colours[indices])
    found = decode_image(gif(indices, FOUR, canvas=(2, 3), clear=2))
    expected = colours[indices].copy()
    expected[indices == 2] = 255
    assert np.array_equal(found, expected)


@pytest.mark.parametrize("clear", [None, 3])
def test_gif_canvas_that_the_frame_leaves_free_is_white(clear: int | None) -> None:
    indices = np.array([[0, 1, 2]])
    found = decode_image(gif(indices, FOUR, canvas=(4, 6), at=(2, 1), clear=clear))
    expected = np.full((4, 6, 3), 255, np.uint8)
    expected[2, 1:4] = np.frombuffer(FOUR, np.uint8).reshape(4, 3)[indices[0]]
    assert np.array_equal(found, expected)


# -- WebP -------------------------------------------------------------------------------------------------------------


def riff(*chunks: tuple[bytes, bytes]) -> bytes:
    body = b"".join(
        name + struct.pack("<I", len(data)) + data + b"\0" * (len(data) % 2) for name, data in chunks
    )
    return b"RIFF" + struct.pack("<I", len(body) + 4) + b"WEBP" + body


def vp8x(flags: int, width: int, height: int) -> tuple[bytes, bytes]:
    size = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    return b"VP8X", bytes((flags, 0, 0, 0)) + size


def bitstream(pixels: Array) -> tuple[bytes, bytes]:
    data = encode(pixels, "WEBP", lossless=True, exact=True)
    name, length = struct.unpack_from("<4sI", data, 12)
    assert name == b"VP8L"
    return name, data[20 : 20 + length]


def frame(pixels: Array, left: int, top: int) -> tuple[bytes, bytes]:
    height, width = pixels.shape[:2]
    head = b"".join(
        value.to_bytes(3, "little") for value in (left // 2, top // 2, width - 1, height - 1, 100)
    )
    name, data = bitstream(pixels)
    inner = name + struct.pack("<I", len(data)) + data + b"\0" * (len(data) % 2)
    return b"ANMF", head + b"\0" + inner


def test_webp_with_alpha() -> None:
    values = noise(9, 13, channels=4)
    expected = on_white(values[..., :3].astype(int), values[..., 3].astype(int), 255)
    assert np.array_equal(decode_image(riff(vp8x(0x10, 13, 9), bitstream(values))), expected)


def test_lossy_webp_with_alpha() -> None:
    values = np.full((16, 16, 4), [200, 40, 90, 255], np.uint8)
    values[:, 8:, 3] = 51
    found = decode_image(encode(values, "WEBP", quality=100)).astype(int)
    assert np.abs(found[:, :8] - [200, 40, 90]).max() < 12
    assert np.abs(found[:, 8:] - [244, 212, 222]).max() < 12


@pytest.mark.parametrize("flags", [0x02, 0x12])
def test_animated_webp_is_its_first_frame_on_white(flags: int) -> None:
    """Also where the file does not say that anything is transparent."""
    first, second = noise(4, 6, seed=1), noise(8, 8, seed=2)
    data = riff(
        vp8x(flags, 8, 8), (b"ANIM", b"\x07\x08\x09\xff\0\0"), frame(first, 2, 4), frame(second, 0, 0)
    )
    expected = np.full((8, 8, 3), 255, np.uint8)
    expected[4:8, 2:8] = first
    assert np.array_equal(decode_image(data), expected)


def test_animated_png_is_its_still_picture() -> None:
    still, moving = noise(6, 8, seed=1), noise(6, 8, seed=2)
    control = struct.pack(">IIIIIHHBB", 0, 8, 6, 0, 0, 1, 10, 0, 0)
    frames = (
        png_chunk(b"fcTL", control),
        png_chunk(b"fdAT", struct.pack(">I", 1) + zlib.compress(packed(moving, 8))),
    )
    for before in (png_chunk(b"acTL", struct.pack(">II", 1, 0)), b""):
        data = png(8, 6, packed(still, 8), 8, 2, before)
        assert np.array_equal(decode_image(data[:-12] + b"".join(frames) + data[-12:]), still)


# -- BMP --------------------------------------------------------------------------------------------------------------


def bmp_of(
    width: int,
    height: int,
    bits: int,
    rows: bytes,
    palette: bytes = b"",
    compression: int = 0,
    masks: bytes = b"",
) -> bytes:
    size, colours = 40 + (16 if len(masks) == 16 else 0), len(palette) // 4
    info = struct.pack("<IiiHHIIiiII", size, width, height, 1, bits, compression, len(rows), 0, 0, colours, 0)
    head = info + masks + palette
    return b"BM" + struct.pack("<IHHI", 14 + len(head) + len(rows), 0, 0, 14 + len(head)) + head + rows


def bmp_rows(values: Array, size: int = 1) -> bytes:
    """Bottom up, each row padded to four bytes; [H, W] numbers of ``size`` bytes, or [H, W, C] bytes."""
    rows = []
    for row in values[::-1]:
        data = b"".join(int(value).to_bytes(size, "little") for value in row.reshape(-1))
        rows.append(data + b"\0" * (-len(data) % 4))
    return b"".join(rows)


def test_bmp_colours() -> None:
    colours = noise(3, 5)
    blue_first = bmp_rows(colours[..., ::-1])
    assert np.array_equal(decode_image(bmp_of(5, 3, 24, blue_first)), colours)
    top_down = bmp_rows(colours[::-1, :, ::-1])
    assert np.array_equal(decode_image(bmp_of(5, -3, 24, top_down)), colours)
    unused = np.dstack([colours[..., ::-1], np.zeros((3, 5), np.uint8)])
    assert np.array_equal(decode_image(bmp_of(5, 3, 32, bmp_rows(unused))), colours), (
        "the fourth byte is none"
    )
    alpha = noise(3, 5, seed=4, channels=1)
    masks = struct.pack("<IIII", 0xFF0000, 0xFF00, 0xFF, 0xFF000000)
    data = bmp_of(5, 3, 32, bmp_rows(np.dstack([colours[..., ::-1], alpha])), compression=3, masks=masks)
    assert np.array_equal(decode_image(data), on_white(colours.astype(int), alpha.astype(int), 255))


@pytest.mark.parametrize(
    ("compression", "parts"), [(0, (5, 5, 5)), (3, (5, 5, 5)), (3, (5, 6, 5))], ids=["plain", "555", "565"]
)
def test_bmp_of_16_bits(compression: int, parts: tuple[int, int, int]) -> None:
    rng = np.random.default_rng(2)
    red, green, blue = (rng.integers(0, 1 << bits, (3, 5)) for bits in parts)
    words = red << (parts[1] + parts[2]) | green << parts[2] | blue
    masks = b""
    if compression:
        low = parts[2]
        fields = (((1 << parts[0]) - 1) << (parts[1] + low), ((1 << parts[1]) - 1) << low, (1 << low) - 1)
        masks = struct.pack("<III", *fields)
    expected = np.stack(
        [part * 255 / ((1 << bits) - 1) for part, bits in zip((red, green, blue), parts, strict=True)], -1
    )
    found = decode_image(bmp_of(5, 3, 16, bmp_rows(words, 2), compression=compression, masks=masks))
    assert np.abs(found - expected).max() < 1


@pytest.mark.parametrize("bits", [1, 4, 8])
@pytest.mark.parametrize("grey", [False, True])
def test_bmp_palettes(bits: int, grey: bool) -> None:
    count = 1 << bits
    colours = noise(1, count, seed=bits)[0]
    if grey:
        colours = (np.arange(count) * 255 // (count - 1)).astype(np.uint8)[:, None].repeat(3, 1)
    indices = np.random.default_rng(bits).integers(0, count, (3, 11))
    rows = b""
    for row in indices[::-1]:
        text = "".join(format(int(index), f"0{bits}b") for index in row)
        text += "0" * (-len(text) % 32)
        rows += int(text, 2).to_bytes(len(text) // 8, "big")
    palette = np.dstack([colours[None, :, ::-1], np.zeros((1, count), np.uint8)]).astype(np.uint8).tobytes()
    assert np.array_equal(decode_image(bmp_of(11, 3, bits, rows, palette)), colours[indices])


@pytest.mark.parametrize(
    ("bits", "shades"),
    [(8, (0, 255)), (8, (0, 1)), (4, (0, 255)), (4, tuple(range(16))), (8, tuple(range(16)))],
)
def test_bmp_with_few_greys(bits: int, shades: tuple[int, ...]) -> None:
    """Palettes that look as if there were none: the size of an index is what the header says."""
    colours = np.array(shades, np.uint8)[:, None].repeat(3, 1)
    indices = np.random.default_rng(bits).integers(0, len(shades), (4, 16))
    palette = b"".join(bytes((shade, shade, shade, 0)) for shade in shades)
    rows = indices[::-1].astype(np.uint8)
    data = rows.tobytes() if bits == 8 else (rows[:, ::2] << 4 | rows[:, 1::2]).astype(np.uint8).tobytes()
    assert np.array_equal(decode_image(bmp_of(16, 4, bits, data, palette)), colours[indices])


def test_bmp_runs() -> None:
    colours = noise(1, 256, seed=8)[0]
    palette = np.dstack([colours[None, :, ::-1], np.zeros((1, 256), np.uint8)]).astype(np.uint8).tobytes()
    runs = bytes([3, 7, 2, 9, 0, 0]) + bytes([0, 5, 1, 2, 3, 4, 5, 0]) + bytes([0, 1])
    found = decode_image(bmp_of(5, 2, 8, runs, palette, compression=1))
    assert np.array_equal(found, colours[np.array([[1, 2, 3, 4, 5], [7, 7, 7, 9, 9]])])


def test_long_runs_are_refused() -> None:
    """They are unpacked in Python, which other threads would have to wait for."""
    palette = b"\1\2\3\0" * 256
    row = bytes([1, 7]) * 1000 + b"\0\0"
    assert decode_image(bmp_of(1000, 900, 8, row * 900 + b"\0\1", palette, compression=1)).shape == (
        900,
        1000,
        3,
    )
    with pytest.raises(RequestError, match="run-length encoded BMP of over 2097152 bytes; send it as PNG"):
        decode_image(bmp_of(1000, 1100, 8, row * 1100 + b"\0\1", palette, compression=1))
