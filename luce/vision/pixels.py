"""From a decoder's pixels to RGB on white, upright, a band of rows at a time.

Every conversion is made here and not by the decoding library: it saturates 16-bit shades, makes transparent pixels
black, and takes several copies of the whole picture to do so. Only a palette's colours, once they are put on white, are
looked up by it: it takes an eighth of the time and does not hold the interpreter's lock, which pictures that come
together would wait for. Colours are taken as sRGB, as the models' own processors take them: profiles and gamma are not
applied, and CMYK is mixed by the plain formula. 16-bit samples are scaled to 8 bits and rounded once, after
transparency.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from luce.vision.orientation import turned, upright_shape

__all__ = ["deep_rgb", "rgb"]

BAND = 1 << 18
"""Pixels that are converted in one go."""

Pixels = npt.NDArray[np.uint8]
Band = Callable[[Image.Image], Pixels]


def rgb(image: Image.Image, orientation: int, depth: int = 8) -> Pixels:
    """A loaded picture of 8-bit samples, or of 16-bit grey ones, upright.

    Args:
        image: with the decoder's own mode and transparency.
        orientation: 1 to 8.
        depth: bits of a grey sample in the file.

    Returns:
        [H, W, 3].
    """
    return _in_bands([image], orientation, _converter(image, depth))


def deep_rgb(images: list[Image.Image], orientation: int, key: tuple[int, ...] | None) -> Pixels:
    """A picture of 16-bit colours, or of 16-bit grey with transparency, upright.

    Args:
        images: one with the bytes (grey high, grey low, alpha high, alpha low), or two with the high and the low bytes
            of RGB or RGBA.
        key: the RGB colour that is transparent.
    """

    def convert(*bands: Image.Image) -> Pixels:
        parts = [np.asarray(band).astype(np.uint32) for band in bands]
        if len(parts) == 1:
            grey, alpha = parts[0][..., :2], parts[0][..., 2:]
            return _white(_join(grey[..., :1], grey[..., 1:]), _join(alpha[..., :1], alpha[..., 1:]), 65535)
        values = _join(*parts)
        if values.shape[2] == 4:
            return _white(values[..., :3], values[..., 3:], 65535)
        if key is not None:
            values[(values == np.array(key, np.uint32)).all(-1)] = 65535
        return _to_8_bits(values)

    return _in_bands(images, orientation, convert)


def _in_bands(images: list[Image.Image], orientation: int, convert: Callable[..., Pixels]) -> Pixels:
    width, height = images[0].size
    upright = np.empty((*upright_shape(height, width, orientation), 3), np.uint8)
    stored = turned(upright, orientation)
    rows = max(1, BAND // width)
    for top in range(0, height, rows):
        box = (0, top, width, min(top + rows, height))
        stored[top : top + rows] = convert(*(image.crop(box) for image in images))
    return upright


def _converter(image: Image.Image, depth: int) -> Band:
    mode, key = image.mode, image.info.get("transparency")
    if mode.startswith("I"):
        return lambda band: _grey16(band, key)
    if mode == "P":
        image.putpalette(_palette(image).tobytes())
        image.info.pop("transparency", None)
        return lambda band: np.asarray(band.convert("RGB"))
    if mode in ("1", "L"):
        shades = np.arange(256, dtype=np.uint8)
        if isinstance(key, int):
            scaled = key if mode == "1" else key * (255 // ((1 << min(depth, 8)) - 1))
            shades[shades == scaled] = 255
        return lambda band: shades[np.asarray(band if mode == "L" else band.convert("L"))][..., None]
    if mode == "RGB":
        return lambda band: _keyed(np.asarray(band), key)
    if mode in ("LA", "RGBA"):
        return lambda band: _with_alpha(np.asarray(band))
    if mode == "CMYK":
        return lambda band: _cmyk(np.asarray(band).astype(np.uint16))
    return lambda band: _with_alpha(np.asarray(band.convert("RGBA")))


def _palette(image: Image.Image) -> Pixels:
    """[256, 3]: the colours of a palette, on white."""
    colours = np.zeros((256, 4), np.uint8)
    given = np.array(image.getpalette("RGB") or (), np.uint8)[: 256 * 3].reshape(-1, 3)
    colours[: len(given), :3], colours[:, 3] = given, 255
    clear = image.info.get("transparency")
    if isinstance(clear, bytes):
        alpha = np.frombuffer(clear[:256], np.uint8)
        colours[: len(alpha), 3] = alpha
    elif isinstance(clear, int) and 0 <= clear < 256:
        colours[clear, 3] = 0
    return _with_alpha(colours)


def _keyed(pixels: Pixels, key: object) -> Pixels:
    if not isinstance(key, tuple) or max(key) > 255:
        return pixels
    pixels = pixels.copy()
    pixels[(pixels == np.array(key, np.uint8)).all(-1)] = 255
    return pixels


def _with_alpha(values: Pixels) -> Pixels:
    """The last channel is the alpha. Nothing is over 16 bits on the way: the sum is at most 255 * 255."""
    if values[..., -1].min() == 255:
        return values[..., :-1]  # most pictures with an alpha are opaque
    wide = values.astype(np.uint16)
    return _white(wide[..., :-1], wide[..., -1:], 255)


def _white(colours: npt.NDArray[Any], alpha: npt.NDArray[Any], most: int) -> Pixels:
    """Colours on white, where ``most`` is full colour and opaque; rounded once."""
    if most != 255 and alpha.min() == most:
        return _to_8_bits(colours)
    mixed = colours * alpha + most * (most - alpha)
    if most == 255:
        return _over_255(mixed)
    # up to 65535 squared, which 32 bits hold; the quotient is never nearer to a half than the product is exact
    return _shades(mixed * (255 / most**2) + 0.5)


def _cmyk(inks: npt.NDArray[np.uint16]) -> Pixels:
    """As the decoder gives them: 255 is full ink, whatever way round the file has them."""
    left = 255 - inks
    return _over_255(left[..., :3] * left[..., 3:])


def _grey16(band: Image.Image, key: object) -> Pixels:
    values = np.clip(np.asarray(band), 0, 65535).astype(np.uint32)
    if isinstance(key, int):
        values[values == key] = 65535
    return _to_8_bits(values)[..., None]


def _join(high: npt.NDArray[np.uint32], low: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    return np.asarray((high << 8) + low, np.uint32)


def _to_8_bits(values: npt.NDArray[np.uint32]) -> Pixels:
    """To the nearest, exact for all 65,536."""
    return _shades((values * 255 + 32895) >> 16)


def _over_255(values: npt.NDArray[np.uint16]) -> Pixels:
    """To the nearest, exact up to 255 squared, without a division."""
    values = values + np.uint16(128)
    return _shades((values + (values >> 8)) >> 8)


def _shades(values: npt.NDArray[Any]) -> Pixels:
    return values.astype(np.uint8)
