"""Safe decoding of pictures from clients: bounds first, then pixels, upright and in RGB.

Order (spec qwen35 §11): size from the header -> what is no picture cut out -> decode -> alpha onto white -> RGB,
upright.
Broken metadata is ignored; broken pixels are an error.
"""

from __future__ import annotations

import io
from typing import Any, NoReturn

import attrs
import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError

from luce.errors import RequestError
from luce.vision.essentials import Essentials, essentials
from luce.vision.header import HeaderError, image_header
from luce.vision.pixels import deep_rgb, rgb

__all__ = ["DECODE_BYTES", "MAX_ASPECT", "MAX_PIXELS", "DecodeLimits", "check_image", "decode_image"]

MAX_ASPECT = 200
"""Longer side over shorter side; beyond it the preprocessor of this family refuses a picture."""
MAX_PIXELS = 50_000_000
"""Width times height if nobody says otherwise: what the largest cameras of phones give."""
MAX_SCANS = 100
"""Scans of a progressive JPEG; each one costs a pass over the whole picture, and encoders write about ten."""

DECODE_BYTES = 16
"""Memory for each pixel of a picture while it is decoded, at most, on top of its file: an animated WebP's two canvases,
the frame and its copy. Others take 4 to 12."""


# Bounded here, by limits that an operator may raise; the library would warn and refuse by its own.
Image.MAX_IMAGE_PIXELS = None


@attrs.frozen
class DecodeLimits:
    """Bounds of one picture as it is sent, before any resizing."""

    max_bytes: int = 32 * 1024 * 1024
    max_pixels: int = MAX_PIXELS
    """Width times height; decoding takes up to :data:`DECODE_BYTES` for each."""
    max_side: int = 32_768


def decode_image(
    data: bytes, *, limits: DecodeLimits | None = None, field: str = "image"
) -> npt.NDArray[np.uint8]:
    """Decode a PNG, JPEG, WebP, GIF (first frame) or BMP.

    Returns:
        [height, width, 3] RGB, upright.

    Raises:
        RequestError: another format, too large, too long and thin, or broken; names ``field``.
    """
    limits = limits or DecodeLimits()
    kind, _, _ = check_image(data, limits=limits, field=field)
    try:
        found = essentials(data, kind)
        del data
        if kind == "PNG" and found.depth == 16 and found.colour != 0:
            return _deep_png(found, limits, field)
        with _opened(found.data, kind, limits, field) as image:
            image.load()
            image.__dict__.pop("_decoder", None)  # of WebP: as large as the picture, and done
            pixels = rgb(image, found.orientation, found.depth)
    except RequestError:
        raise
    except HeaderError as error:
        _refuse(field, f"is no supported image: {error}")
    except UnidentifiedImageError:
        _refuse(field, f"is a broken {kind}: its header or first chunk cannot be read")
    except Exception as error:  # decoders raise anything on broken files
        _refuse(field, f"is a broken {kind}: {_first_line(error)}")
    if found.covered is not None:
        _clear_outside(pixels, found.covered)
    return pixels


def check_image(
    data: bytes, *, limits: DecodeLimits | None = None, field: str = "image"
) -> tuple[str, int, int]:
    """Format, height and width from the header alone, within the limits. Costs nothing.

    Height and width are as stored: an orientation tag may exchange them.

    Raises:
        RequestError: another format, too large, or too long and thin; names ``field``.
    """
    limits = limits or DecodeLimits()
    if len(data) > limits.max_bytes:
        _refuse(field, f"has {len(data)} bytes; at most {limits.max_bytes} are allowed")
    try:
        kind, width, height = image_header(data)
    except HeaderError as error:
        _refuse(field, f"is no supported image: {error}")
    _check_size(width, height, limits, field)
    if kind == "JPEG" and data.count(b"\xff\xda") > MAX_SCANS:
        _refuse(field, f"is a JPEG of more than {MAX_SCANS} scans")
    return kind, height, width


def _check_size(width: int, height: int, limits: DecodeLimits, field: str) -> None:
    if width < 1 or height < 1:
        _refuse(field, f"is empty: {width}x{height} pixels")
    if width * height > limits.max_pixels or max(width, height) > limits.max_side:
        _refuse(
            field,
            f"is too large: {width}x{height} pixels; at most {limits.max_pixels} pixels and "
            f"{limits.max_side} a side are allowed",
        )
    if max(width, height) > MAX_ASPECT * min(width, height):
        _refuse(
            field, f"is too long and thin: {width}x{height} pixels; at most {MAX_ASPECT} to 1 is supported"
        )


def _opened(data: bytes, kind: str, limits: DecodeLimits, field: str) -> Any:
    """The picture before its pixels are read; its type is the format's plug-in."""
    image = Image.open(io.BytesIO(data), formats=(kind.upper(),))
    _check_size(*image.size, limits, field)
    return image


_DEEP = {2: ("RGB;16B", "RGB;16L"), 4: ("RGBA",), 6: ("RGBA;16B", "RGBA;16L")}
"""PNG colour type: raw modes that give all bytes of 16-bit samples. The library keeps 8 bits of each: read once as big
and once as little endian they are the high and the low bytes; grey and alpha fit as if they were RGBA."""


def _deep_png(found: Essentials, limits: DecodeLimits, field: str) -> npt.NDArray[np.uint8]:
    planes, key = [], None
    for mode in _DEEP[found.colour]:
        with _opened(found.data, "PNG", limits, field) as image:
            image.tile = [tile._replace(args=mode) for tile in image.tile]
            image.load()
            planes.append(image)
            key = image.info.get("transparency")
    return deep_rgb(planes, found.orientation, key)


def _clear_outside(pixels: npt.NDArray[np.uint8], box: tuple[int, int, int, int]) -> None:
    left, top, right, bottom = box
    pixels[:top] = pixels[bottom:] = 255
    pixels[:, :left] = pixels[:, right:] = 255


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0][:200]


def _refuse(field: str, message: str) -> NoReturn:
    raise RequestError(f"{field} {message}", field=field)
