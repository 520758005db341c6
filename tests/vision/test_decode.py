"""Decoding: formats, modes, orientation, broken files and bombs (B26, B27, B29, B33)."""

from __future__ import annotations

import struct
import subprocess
import sys
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from luce.errors import RequestError
from luce.vision.decode import decode_image
from luce.vision.header import HeaderError, image_header
from tests.fetch import require
from tests.vision.pictures import encode, gradient, noise, png, png_chunk

PICTURE = gradient(40, 64)


def refused(data: bytes, match: str, **options: Any) -> RequestError:
    with pytest.raises(RequestError, match=match) as found:
        decode_image(data, field="messages[0].content[1].image_url.url", **options)
    error = found.value
    assert error.field == "messages[0].content[1].image_url.url" and error.status == 400
    assert error.message.startswith(error.field) and "\n" not in error.message and len(error.message) < 400
    return error


# -- formats ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "options"),
    [("PNG", {}), ("BMP", {}), ("WEBP", {"lossless": True}), ("PNG", {"compress_level": 0})],
)
def test_lossless_formats_give_their_pixels(kind: str, options: dict[str, Any]) -> None:
    pixels = decode_image(encode(PICTURE, kind, **options))
    assert pixels.dtype == np.uint8 and pixels.shape == (40, 64, 3) and pixels.flags.c_contiguous
    assert np.array_equal(pixels, PICTURE)


@pytest.mark.parametrize("options", [{"quality": 95}, {"progressive": True, "quality": 95}])
def test_jpeg_is_near_its_pixels(options: dict[str, Any]) -> None:
    assert np.abs(decode_image(encode(PICTURE, "JPEG", **options)).astype(int) - PICTURE).max() < 40


def test_first_frame_of_animations() -> None:
    frames = [Image.fromarray(np.full((20, 30, 3), shade, np.uint8)) for shade in (255, 0, 128)]
    for kind in ("GIF", "WEBP", "PNG"):
        data = encode(frames[0], kind, save_all=True, append_images=frames[1:], duration=10)
        pixels = decode_image(data)
        assert pixels.shape == (20, 30, 3) and (pixels == 255).all(), kind


@pytest.mark.parametrize(
    "kind", ["TIFF", "ICO", "PPM", "PDF", "EPS", "TGA", "ICNS", "AVIF", "JPEG2000", "SGI"]
)
def test_other_formats_are_refused(kind: str) -> None:
    try:
        data = encode(Image.fromarray(noise(32, 32)), kind)
    except (KeyError, OSError):
        pytest.skip(f"this Pillow writes no {kind}")
    error = refused(data, "is no supported image: .*supported")
    if kind in ("TIFF", "PDF", "EPS", "ICO", "AVIF"):
        assert kind in error.message


@pytest.mark.parametrize(
    "data", [b"", b"x", b"<svg xmlns='x'/>", b"\0" * 100, b"GIF8", b"RIFF\0\0\0\0WAVE", b"\xff\xd8"]
)
def test_what_is_no_picture_is_refused(data: bytes) -> None:
    refused(data, "is no supported image")


def test_the_name_of_a_format_says_nothing() -> None:
    """What counts is the file's beginning; a TIFF stays a TIFF under any media type."""
    with pytest.raises(HeaderError, match="TIFF"):
        image_header(encode(PICTURE, "TIFF"))


# -- modes ------------------------------------------------------------------------------------------------------------


def test_alpha_goes_onto_white() -> None:
    pixels = np.dstack([np.full((4, 4, 3), [200, 0, 100], np.uint8), np.full((4, 4), 0, np.uint8)])
    pixels[0, 0, 3], pixels[0, 1, 3] = 255, 51
    for kind in ("PNG", "WEBP"):
        found = decode_image(
            encode(pixels, kind, **({"lossless": True, "exact": True} if kind == "WEBP" else {}))
        )
        assert found[0, 0].tolist() == [200, 0, 100]
        assert np.abs(found[0, 1].astype(int) - [244, 204, 224]).max() <= 1
        assert (found[1:] == 255).all(), kind


def test_grey_with_alpha() -> None:
    grey = np.dstack([np.full((4, 4), 10, np.uint8), np.full((4, 4), 255, np.uint8)])
    grey[0, 0, 1] = 0
    found = decode_image(encode(Image.fromarray(grey, "LA")))
    assert found[0, 0].tolist() == [255] * 3 and found[1, 1].tolist() == [10] * 3


@pytest.mark.parametrize("mode", ["L", "1", "P"])
def test_modes_without_alpha(mode: str) -> None:
    image = Image.fromarray(gradient(16, 16)).convert(mode)
    assert np.array_equal(decode_image(encode(image)), np.asarray(image.convert("RGB")))


def test_palettes_with_transparency() -> None:
    image = Image.new("P", (4, 2))
    image.putpalette([10, 20, 30, 40, 50, 60, 70, 80, 90])
    image.putdata([0, 1, 2, 0, 1, 1, 1, 1])
    single = decode_image(encode(image, "PNG", transparency=1))
    table = decode_image(encode(image, "PNG", transparency=bytes([255, 0, 51])))
    for found in (single, table):
        assert found[0, 0].tolist() == [10, 20, 30] and found[1, 0].tolist() == [255] * 3
    assert single[0, 2].tolist() == [70, 80, 90]
    assert np.abs(table[0, 2].astype(int) - [218, 220, 222]).max() <= 1
    gif = decode_image(encode(image, "GIF", transparency=1))
    assert gif[1, 0].tolist() == [255] * 3 and gif[0, 0].tolist() == [10, 20, 30]


def test_colour_keys() -> None:
    rows = b"\0" + bytes([1, 2, 3, 9, 9, 9])
    keyed = png(2, 1, rows, 8, 2, png_chunk(b"tRNS", struct.pack(">HHH", 1, 2, 3)))
    assert decode_image(keyed).tolist() == [[[255] * 3, [9] * 3]]
    grey = png(2, 1, b"\0" + bytes([7, 8]), 8, 0, png_chunk(b"tRNS", struct.pack(">H", 7)))
    assert decode_image(grey).tolist() == [[[255] * 3, [8] * 3]]
    deep = png(2, 1, b"\0" + struct.pack(">6H", 256, 512, 768, 9, 9, 9), 16, 2)
    expected = decode_image(deep)
    key = png_chunk(b"tRNS", struct.pack(">HHH", 300, 2, 3))
    assert np.array_equal(
        decode_image(png(2, 1, b"\0" + struct.pack(">6H", 256, 512, 768, 9, 9, 9), 16, 2, key)), expected
    )


def test_sixteen_bits_are_scaled_not_cut() -> None:
    values = [0, 1, 128, 257, 32767, 32768, 65278, 65535]
    grey = png(8, 1, b"\0" + struct.pack(">8H", *values), 16, 0)
    assert decode_image(grey)[0, :, 0].tolist() == [0, 0, 0, 1, 127, 128, 254, 255]
    colour = png(2, 1, b"\0" + struct.pack(">6H", *values[2:]), 16, 2)
    assert np.abs(decode_image(colour).reshape(-1).astype(float) - np.array(values[2:]) / 257).max() < 1
    clear = png(2, 1, b"\0" + struct.pack(">2H", 5, 5000), 16, 0, png_chunk(b"tRNS", struct.pack(">H", 5)))
    assert decode_image(clear)[0, :, 0].tolist() == [255, 19]


def test_cmyk_jpeg() -> None:
    cmyk = Image.new("CMYK", (16, 16), (255, 0, 0, 0))
    found = decode_image(encode(cmyk, "JPEG", quality=100))
    assert np.abs(found.astype(int) - [0, 255, 255]).max() < 8


# -- orientation and metadata -----------------------------------------------------------------------------------------

TURNS = {
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.transpose(1, 0, 2),
    6: lambda a: np.rot90(a, 1),
    7: lambda a: np.rot90(a, 2).transpose(1, 0, 2),
    8: lambda a: np.rot90(a, -1),
}
"""How a picture is stored, so that the viewer's turn puts it upright."""


def exif(orientation: int) -> bytes:
    found = Image.Exif()
    found[0x0112] = orientation
    return found.tobytes()


@pytest.mark.parametrize("orientation", TURNS)
def test_orientation_is_applied_first(orientation: int) -> None:
    """B27: every stored form of one asymmetric picture gives the upright one."""
    upright = gradient(64, 160)
    stored = np.ascontiguousarray(TURNS[orientation](upright))
    assert orientation == 1 or not np.array_equal(stored, upright)
    for kind, options in (("PNG", {}), ("WEBP", {"lossless": True})):
        assert np.array_equal(decode_image(encode(stored, kind, exif=exif(orientation), **options)), upright)
    plain = decode_image(encode(upright, "JPEG", quality=100, subsampling=0))
    turned = decode_image(encode(stored, "JPEG", quality=100, subsampling=0, exif=exif(orientation)))
    assert turned.shape == plain.shape and np.abs(turned.astype(int) - plain).max() <= 8


def test_orientation_of_a_real_photograph() -> None:
    with Image.open(require("scikit-image") / "skimage/data/rocket.jpg") as image:
        upright = np.asarray(image.convert("RGB"))
    for orientation, turn in TURNS.items():
        stored = np.ascontiguousarray(turn(upright))
        assert np.array_equal(decode_image(encode(stored, "PNG", exif=exif(orientation))), upright)


def jpeg_with_app1(payload: bytes) -> bytes:
    data = encode(PICTURE, "JPEG", quality=90)
    return data[:2] + b"\xff\xe1" + struct.pack(">H", len(payload) + 2) + payload + data[2:]


@pytest.mark.parametrize(
    "payload",
    [
        b"Exif\0\0",
        b"Exif\0\0II*\0",
        b"Exif\0\0II*\0\xff\xff\xff\xff",
        b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03",
        b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x02\0\x05\0\0\0hello",
        b"Exif\0\0garbage that is no TIFF at all",
        b"Exif\0\0II*\0\x08\0\0\0" + struct.pack("<HHHII", 1, 0x0112, 3, 1, 99) + b"\0\0\0\0",
        b"Exif\0\0II*\0\x08\0\0\0" + struct.pack("<HHHII", 1, 0x0112, 3, 1, 0) + b"\0\0\0\0",
    ],
)
def test_broken_exif_is_ignored(payload: bytes) -> None:
    """B29."""
    expected = decode_image(encode(PICTURE, "JPEG", quality=90))
    assert np.array_equal(decode_image(jpeg_with_app1(payload)), expected)
    chunk = png_chunk(b"eXIf", payload.removeprefix(b"Exif\0\0"))
    data = encode(PICTURE)
    assert np.array_equal(decode_image(data[:33] + chunk + data[33:]), PICTURE)


def test_broken_exif_says_nothing_on_standard_error() -> None:
    """In a process of its own: pytest has its own idea of warnings."""
    data = jpeg_with_app1(b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03")
    ask = "import sys; from {}; decode(sys.stdin.buffer.read())"
    noisy = "PIL import Image; import io; decode = lambda data: Image.open(io.BytesIO(data)).getexif()"
    for code, said in (
        (ask.format(noisy), True),
        (ask.format("luce.vision.decode import decode_image as decode"), False),
    ):
        run = subprocess.run(
            [sys.executable, "-c", code], input=data, capture_output=True, timeout=60, check=True
        )
        assert (b"Corrupt EXIF" in run.stderr) is said, run.stderr


REAL = [
    "chelsea.png",
    "color.png",
    "horse.png",
    "motorcycle_left.png",
    "page.png",
    "rocket.jpg",
    "chessboard_GRAY.png",
]


@pytest.mark.parametrize("name", REAL)
def test_real_pictures(name: str) -> None:
    path = require("scikit-image") / "skimage/data" / name
    found = decode_image(path.read_bytes())
    with Image.open(path) as image:
        assert image_header(path.read_bytes())[1:] == image.size == (found.shape[1], found.shape[0])
        assert np.array_equal(found, on_white(image))


def test_real_oddities() -> None:
    folder = require("scikit-image") / "skimage/data"
    assert decode_image((folder / "no_time_for_that_tiny.gif").read_bytes()).shape == (25, 14, 3)
    refused((folder / "multipage.tif").read_bytes(), "TIFF is not supported")
    grey, colour = (
        decode_image((folder / f"chessboard_{mode}.png").read_bytes()) for mode in ("GRAY", "RGB")
    )
    assert np.array_equal(grey, colour)


def on_white(image: Image.Image) -> npt.NDArray[np.uint8]:
    if image.mode != "RGBA":
        return np.asarray(image.convert("RGB"))
    values = np.asarray(image).astype(float)
    alpha = values[..., 3:] / 255
    blended = np.round(values[..., :3] * alpha + 255 * (1 - alpha)).astype(np.uint8)
    found = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    assert np.abs(np.asarray(found).astype(int) - blended).max() <= 1
    return np.asarray(found)
