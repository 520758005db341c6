"""Safe decoding of pictures from clients: bounds first, then pixels, upright and in RGB.

Order (spec qwen35 §11): size from the header -> decode -> EXIF orientation -> alpha onto white -> RGB. Broken
metadata is ignored; broken pixels are an error.
"""

from __future__ import annotations

import io
import warnings
from typing import NoReturn

import attrs
import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError

from luce.errors import RequestError
from luce.vision.header import HeaderError, image_header

__all__ = ["MAX_ASPECT", "DecodeLimits", "check_image", "decode_image"]

MAX_ASPECT = 200
"""Longer side over shorter side; beyond it the preprocessor of this family refuses a picture."""
MAX_SCANS = 100
"""Scans of a progressive JPEG; each one costs a pass over the whole picture, and encoders write about ten."""

# Broken metadata is ignored by rule; Pillow says so once per tag, and one request can hold a megabyte of it.
warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.TiffImagePlugin")

_ORIENTATION = 0x0112
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


@attrs.frozen
class DecodeLimits:
    """Bounds of one picture as it is sent, before any resizing."""

    max_bytes: int = 32 * 1024 * 1024
    max_pixels: int = 50_000_000
    """Width times height; decoding takes up to eight bytes for each."""
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
        with Image.open(io.BytesIO(data), formats=(kind.upper(),)) as image:
            _check_size(*image.size, limits, field)
            image.load()
            turn = _TURNS.get(_orientation(image))
            return np.asarray(_rgb(image if turn is None else image.transpose(turn)))
    except RequestError:
        raise
    except UnidentifiedImageError:
        _refuse(field, f"is a broken {kind}: its header or first chunk cannot be read")
    except Exception as error:  # decoders raise anything on broken files
        _refuse(field, f"is a broken {kind}: {_first_line(error)}")


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


def _orientation(image: Image.Image) -> int:
    """EXIF orientation; 1 where there is none or it cannot be read."""
    try:
        value = image.getexif().get(_ORIENTATION, 1)
    except Exception:
        return 1
    return value if isinstance(value, int) else 1


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):
        return _grey16(image)
    if "transparency" in image.info and image.mode == "RGB":
        image = _keyed(image)
    if "A" in image.getbands() or "a" in image.getbands() or "transparency" in image.info:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, (255, 255, 255, 255))
        return Image.alpha_composite(white, image).convert("RGB")
    return image if image.mode == "RGB" else image.convert("RGB")


def _grey16(image: Image.Image) -> Image.Image:
    """16-bit grey, rounded to 8 bits (Pillow's own conversion saturates); its transparent value becomes white."""
    values = np.clip(np.asarray(image).astype(np.int64), 0, 65535)
    grey = ((values * 255 + 32767) // 65535).astype(np.uint8)
    clear = image.info.get("transparency")
    if isinstance(clear, int):
        grey[values == clear] = 255
    return Image.fromarray(grey).convert("RGB")


def _keyed(image: Image.Image) -> Image.Image:
    """A colour key of a 16-bit picture, which was reduced to 8 bits, matches no pixel for sure: drop it."""
    key = image.info["transparency"]
    if isinstance(key, bytes) or (isinstance(key, tuple) and max(key) <= 255):
        return image
    image = image.copy()
    del image.info["transparency"]
    return image


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0][:200]


def _refuse(field: str, message: str) -> NoReturn:
    raise RequestError(f"{field} {message}", field=field)
