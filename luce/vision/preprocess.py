"""From pixels to patches: resize, scale, patchify (spec qwen35 §11)."""

from __future__ import annotations

import hashlib
import math
import struct
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
from PIL import Image

from luce.engines.seam import PatchImage
from luce.errors import ModelFileError, RequestError
from luce.vision.decode import MAX_ASPECT

__all__ = ["PreprocessingOptions", "Preprocessor", "patchify", "resize", "smart_resize"]


class PreprocessingOptions(Protocol):
    """See :class:`luce.weights.sources.PreprocessorSource`."""

    @property
    def patch_size(self) -> int: ...
    @property
    def temporal_patch_size(self) -> int: ...
    @property
    def merge_size(self) -> int: ...
    @property
    def min_pixels(self) -> int: ...
    @property
    def max_pixels(self) -> int: ...
    @property
    def image_mean(self) -> tuple[float, float, float]: ...
    @property
    def image_std(self) -> tuple[float, float, float]: ...
    @property
    def path(self) -> Path: ...


class Preprocessor:
    """Immutable and re-entrant."""

    def __init__(self, options: PreprocessingOptions) -> None:
        """Raises ModelFileError when the options make no sense; names their file."""
        self.options = options
        self.factor = options.patch_size * options.merge_size
        """Sides of resized pictures are multiples of it, in pixels."""
        if min(options.patch_size, options.merge_size, options.temporal_patch_size) < 1:
            raise ModelFileError(
                options.path, "patch_size, merge_size and temporal_patch_size must be positive"
            )
        if not self.factor**2 <= options.max_pixels or not 1 <= options.min_pixels <= options.max_pixels:
            raise ModelFileError(
                options.path,
                f"min_pixels {options.min_pixels} and max_pixels {options.max_pixels} do not fit a picture of "
                f"{self.factor}x{self.factor}",
            )
        numbers = (*options.image_mean, *options.image_std)
        if not all(map(math.isfinite, numbers)) or min(options.image_std) <= 0:
            raise ModelFileError(options.path, "image_mean and image_std must be finite, image_std positive")
        shades = np.arange(256) / 255
        self.scale = np.stack(
            [(shades - mean) / std for mean, std in zip(options.image_mean, options.image_std, strict=True)]
        ).astype(np.float32)

    def __call__(self, pixels: npt.NDArray[np.uint8], *, field: str = "image") -> PatchImage:
        """Resize and patchify one picture.

        Args:
            pixels: [height, width, 3] RGB.
            field: for errors.

        Raises:
            RequestError: the picture is too long and thin; names ``field``.
        """
        options = self.options
        height, width = self.target(pixels.shape[0], pixels.shape[1], field=field)
        grid = (height // options.patch_size, width // options.patch_size)
        return PatchImage(
            values=patchify(resize(pixels, height, width), options.patch_size, options.merge_size),
            grid=grid,
            digest=self.digest(pixels),
            num_tokens=grid[0] * grid[1] // options.merge_size**2,
            scale=self.scale,
        )

    def target(self, height: int, width: int, *, field: str = "image") -> tuple[int, int]:
        """(height, width) after resizing.

        Raises:
            RequestError: the picture is too long and thin; names ``field``.
        """
        if max(height, width) > MAX_ASPECT * min(height, width):
            raise RequestError(
                f"{field} is too long and thin: {width}x{height} pixels; at most {MAX_ASPECT} to 1 is supported",
                field=field,
            )
        return smart_resize(height, width, self.factor, self.options.min_pixels, self.options.max_pixels)

    @property
    def most_patches(self) -> int:
        """No picture that :meth:`target` takes has more patches."""
        options = self.options
        return largest_area(self.factor, options.min_pixels, options.max_pixels) // options.patch_size**2

    def digest(self, pixels: npt.NDArray[np.uint8]) -> bytes:
        """32-byte digest of the decoded pixels, size, mode and every option (design §7)."""
        options = self.options
        digest = hashlib.blake2b(b"luce image 1 RGB bicubic", digest_size=32)
        digest.update(struct.pack("<2q", *pixels.shape[:2]))
        digest.update(struct.pack("<3q", options.patch_size, options.temporal_patch_size, options.merge_size))
        digest.update(struct.pack("<2q", options.min_pixels, options.max_pixels))
        digest.update(struct.pack("<6d", *options.image_mean, *options.image_std))
        digest.update(np.ascontiguousarray(pixels).data)
        return digest.digest()


def smart_resize(height: int, width: int, factor: int, min_pixels: int, max_pixels: int) -> tuple[int, int]:
    """Nearest (height, width) in multiples of ``factor`` with an area within the bounds, about the same shape."""
    rows, columns = round(height / factor) * factor, round(width / factor) * factor
    if rows * columns > max_pixels:
        shrink = math.sqrt(height * width / max_pixels)
        rows = max(factor, math.floor(height / shrink / factor) * factor)
        columns = max(factor, math.floor(width / shrink / factor) * factor)
    elif rows * columns < min_pixels:
        grow = math.sqrt(min_pixels / (height * width))
        rows = math.ceil(height * grow / factor) * factor
        columns = math.ceil(width * grow / factor) * factor
    return rows, columns


def largest_area(factor: int, min_pixels: int, max_pixels: int) -> int:
    """Most pixels that :func:`smart_resize` gives for any picture within :data:`MAX_ASPECT`.

    The bounds are not strict: a long and thin picture is made as wide as a factor at least, and one that is too small
    is rounded up on both sides.
    """
    thin = factor * math.isqrt(MAX_ASPECT * max_pixels)
    sides = math.isqrt(MAX_ASPECT * min_pixels) + math.isqrt(min_pixels) + 2
    return max(max_pixels, thin, min_pixels + factor * sides + factor**2)


def resize(pixels: npt.NDArray[np.uint8], height: int, width: int) -> npt.NDArray[np.uint8]:
    """Bicubic with antialias, byte-exact as in Pillow up to 12: the width first, then the height.

    Two calls, because Pillow 13 chooses the order of the passes itself when both sides change.
    """
    if pixels.shape[:2] == (height, width):
        return pixels
    image = Image.fromarray(pixels)
    if image.width != width:
        image = image.resize((width, image.height), Image.Resampling.BICUBIC)
    if image.height != height:
        image = image.resize((width, height), Image.Resampling.BICUBIC)
    return np.asarray(image)


def patchify(pixels: npt.NDArray[np.uint8], patch: int, merge: int) -> npt.NDArray[np.uint8]:
    """[H, W, 3] to rows [N, 3 * patch * patch]: merge blocks row-major, inside a block row-major,
    inside a row [channel][y][x]."""
    height, width, channels = pixels.shape
    blocks = pixels.reshape(
        height // patch // merge, merge, patch, width // patch // merge, merge, patch, channels
    )
    rows = blocks.transpose(0, 3, 1, 4, 6, 2, 5)
    return np.ascontiguousarray(rows).reshape(-1, channels * patch * patch)
