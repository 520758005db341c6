"""Resizing, patches, digests (B04, B26, B31, B32)."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from luce.errors import ModelFileError, RequestError
from luce.vision.decode import decode_image
from luce.vision.preprocess import MAX_ASPECT, Preprocessor, largest_area, patchify, resize, smart_resize
from luce.weights.sources import PreprocessorSource
from tests.fetch import require
from tests.vision.bicubic import bicubic
from tests.vision.pictures import bmp, encode, gradient, noise

FAMILY = PreprocessorSource(
    patch_size=16,
    temporal_patch_size=2,
    merge_size=2,
    min_pixels=65536,
    max_pixels=16777216,
    image_mean=(0.5, 0.5, 0.5),
    image_std=(0.5, 0.5, 0.5),
    path=Path("model/preprocessor_config.json"),
)
"""The constants of the released models (spec qwen35 §1.3)."""


@pytest.fixture(scope="module")
def family() -> Preprocessor:
    return Preprocessor(FAMILY)


def image_of(patches: npt.NDArray[Any], grid: tuple[int, int], patch: int, merge: int) -> npt.NDArray[Any]:
    """Patch rows back to [H, W, 3]: the inverse of patchify, written out."""
    rows, columns = grid
    out = np.empty((rows * patch, columns * patch, 3), patches.dtype)
    row = iter(patches)
    for block_y in range(0, rows, merge):
        for block_x in range(0, columns, merge):
            for y in range(block_y, block_y + merge):
                for x in range(block_x, block_x + merge):
                    cell = next(row).reshape(3, patch, patch).transpose(1, 2, 0)
                    out[y * patch : (y + 1) * patch, x * patch : (x + 1) * patch] = cell
    return out


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ((224, 224), (256, 256)),
        ((48, 80), (224, 352)),
        ((80, 48), (352, 224)),
        ((480, 640), (480, 640)),
        ((1080, 1920), (1088, 1920)),
        ((10, 1500), (32, 3136)),
        ((4100, 4100), (4096, 4096)),
        ((5000, 8000), (3232, 5152)),
        ((1, 1), (256, 256)),
        ((300, 7), (1696, 64)),
    ],
)
def test_smart_resize_table(size: tuple[int, int], expected: tuple[int, int]) -> None:
    """Spec qwen35 §11."""
    assert smart_resize(*size, 32, 65536, 16777216) == expected


@given(st.integers(1, 9000), st.integers(1, 9000))
def test_smart_resize_bounds(height: int, width: int) -> None:
    if max(height, width) > 200 * min(height, width):
        return
    rows, columns = smart_resize(height, width, 32, 65536, 16777216)
    assert rows % 32 == columns % 32 == 0 and 65536 <= rows * columns <= 16777216
    assert abs(math.log(rows / columns * width / height)) < math.log(2.1) or min(rows, columns) == 32
    assert smart_resize(width, height, 32, 65536, 16777216) == (columns, rows)


SHAPES = [
    (40, 4000),
    (4000, 40),
    (33, 31),
    (1, 200),
    (1, 1),
    (30, 305),
    (31, 31),
    (301, 451),
    (64, 64),
    (20, 900),
]


@pytest.mark.parametrize(("height", "width"), SHAPES)
@pytest.mark.parametrize("target", [(64, 96), (32, 3136), (1696, 64), (33, 31)])
def test_resize_is_byte_exact(height: int, width: int, target: tuple[int, int]) -> None:
    """B32: extreme shapes, both passes, against plain numpy."""
    pixels = noise(height, width, seed=height * 7 + width)
    assert np.array_equal(resize(pixels, *target), bicubic(pixels, *target))


def test_the_order_of_the_passes_shows() -> None:
    """Armed: on these pictures the other order gives other pixels."""
    pixels = noise(61, 33, seed=1)
    turned = bicubic(pixels.transpose(1, 0, 2), 32, 96).transpose(1, 0, 2)
    assert not np.array_equal(turned, bicubic(pixels, 96, 32))


@pytest.mark.parametrize(
    "name", ["rocket.jpg", "color.png", "page.png", "no_time_for_that_tiny.gif", "horse.png"]
)
def test_real_pictures(family: Preprocessor, name: str) -> None:
    pixels = decode_image((require("scikit-image") / "skimage/data" / name).read_bytes())
    height, width = smart_resize(*pixels.shape[:2], 32, 65536, 16777216)
    prepared = family(pixels)
    assert prepared.grid == (height // 16, width // 16)
    assert prepared.num_tokens == height * width // 1024
    scaled = (bicubic(pixels, height, width) / 255 - 0.5) / 0.5
    assert np.abs(image_of(prepared.patches, prepared.grid, 16, 2) - scaled).max() < 1e-6


@pytest.mark.parametrize("limit", [80_000, 100_000, 262_144, 1_000_000, 4_000_000, 16_777_216])
def test_token_counts_at_pixel_limits(limit: int) -> None:
    preprocessor = Preprocessor(attrs.evolve(FAMILY, max_pixels=limit))
    for height, width in ((512, 512), (427, 640), (1411, 1411), (191, 384), (102, 102), (25, 14)):
        rows, columns = preprocessor.target(height, width)
        prepared = preprocessor(np.zeros((height, width, 3), np.uint8))
        assert rows * columns <= limit
        assert prepared.num_tokens == prepared.grid[0] * prepared.grid[1] // 4 == rows * columns // 1024
        assert prepared.patches.shape == (prepared.grid[0] * prepared.grid[1], 768)
        assert prepared.patches.dtype == np.float32 and prepared.patches.flags.c_contiguous
        assert prepared.values.dtype == np.uint8, "a quarter of the memory while it waits"


def test_grid_is_height_by_width(family: Preprocessor) -> None:
    """B31."""
    prepared = family(gradient(192, 640))
    assert prepared.grid == (12, 40) and prepared.num_tokens == 120
    found = image_of(prepared.patches, prepared.grid, 16, 2)
    assert found.shape == (192, 640, 3)
    across, down = found[..., 0].mean(0), found[..., 1].mean(1)
    assert (np.diff(across) >= 0).all() and across[-1] > 0.9 and across[0] < -0.9
    assert (np.diff(down) >= 0).all() and down[-1] > 0.9 and down[0] < -0.9
    means = prepared.patches.reshape(6, 20, 2, 2, 3, 256).mean(-1)
    assert (np.diff(means[..., 0].transpose(0, 2, 1, 3).reshape(12, 40), axis=1) > 0).all(), (
        "red rises along w"
    )
    assert (np.diff(means[..., 1].transpose(0, 2, 1, 3).reshape(12, 40), axis=0) > 0).all(), (
        "green rises along h"
    )


@pytest.mark.parametrize(("patch", "merge"), [(16, 2), (8, 2), (4, 1), (2, 3)])
def test_patch_order(patch: int, merge: int) -> None:
    pixels = noise(patch * merge * 3, patch * merge * 5)
    rows = patchify(pixels, patch, merge)
    assert np.array_equal(image_of(rows, (merge * 3, merge * 5), patch, merge), pixels)


def test_shades_are_scaled() -> None:
    options = attrs.evolve(FAMILY, image_mean=(0.1, 0.2, 0.3), image_std=(0.5, 0.25, 2.0))
    prepared = Preprocessor(options)(np.full((256, 256, 3), [0, 128, 255], np.uint8))
    expected = [(0 - 0.1) / 0.5, (128 / 255 - 0.2) / 0.25, (1 - 0.3) / 2]
    assert np.allclose(prepared.patches.reshape(-1, 3, 256), np.array(expected)[None, :, None], atol=1e-7)


@pytest.mark.parametrize(
    ("height", "width", "fits"),
    [
        (1, 1, True),
        (1, 200, True),
        (1, 201, False),
        (30, 305, True),
        (31, 31, True),
        (9, 2000, False),
        (23, 237, True),
    ],
)
def test_tiny_pictures_grow_or_are_refused(family: Preprocessor, height: int, width: int, fits: bool) -> None:
    """B26."""
    pixels = noise(height, width)
    if not fits:
        with pytest.raises(RequestError, match="too long and thin") as found:
            family(pixels, field="messages[0].content[0].image_url.url")
        assert found.value.field == "messages[0].content[0].image_url.url"
        return
    prepared = family(pixels)
    assert prepared.num_tokens >= 64 and np.isfinite(prepared.patches).all()


def test_digests_see_the_last_row(family: Preprocessor) -> None:
    """B04: two files that differ only at their end."""
    first = noise(64, 64)
    second = first.copy()
    second[-1, -1] ^= 1
    for form in (bmp, lambda p: encode(p, compress_level=0)):
        a, b = (decode_image(form(pixels)) for pixels in (first, second))
        assert family(a).digest != family(b).digest
        assert family(a).digest == family(first).digest and len(family(a).digest) == 32
    left, right = (
        decode_image((require("scikit-image") / f"skimage/data/motorcycle_{side}.png").read_bytes())
        for side in ("left", "right")
    )
    assert family.digest(left) != family.digest(right)


def test_digests_see_size_and_every_option() -> None:
    pixels = noise(32, 64)
    digests = {Preprocessor(FAMILY).digest(pixels), Preprocessor(FAMILY).digest(pixels.reshape(64, 32, 3))}
    changes: list[dict[str, Any]] = [
        {"patch_size": 8},
        {"merge_size": 1},
        {"temporal_patch_size": 1},
        {"min_pixels": 65537},
        {"max_pixels": 16777215},
        {"image_mean": (0.5, 0.5, 0.4)},
        {"image_std": (0.5, 0.5, 0.4)},
    ]
    for change in changes:
        digests.add(Preprocessor(attrs.evolve(FAMILY, **change)).digest(pixels))
    assert len(digests) == 2 + len(changes)
    assert {field.name for field in attrs.fields(PreprocessorSource)} - {"path"} == {
        name for change in changes for name in change
    }, "an option is missing from the digest"


def test_the_same_pixels_in_any_file_are_one_picture(family: Preprocessor) -> None:
    pixels = noise(40, 40)
    files = [encode(pixels), encode(pixels, "BMP"), encode(pixels, "WEBP", lossless=True)]
    assert len({family.digest(decode_image(data)) for data in files}) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"patch_size": 0},
        {"merge_size": -1},
        {"min_pixels": 0},
        {"max_pixels": 1000},
        {"min_pixels": 20_000_000},
        {"image_std": (0.5, 0.0, 0.5)},
        {"image_mean": (0.5, math.nan, 0.5)},
    ],
)
def test_senseless_options_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ModelFileError, match=r"preprocessor_config\.json: "):
        Preprocessor(attrs.evolve(FAMILY, **change))


@given(
    factor=st.integers(1, 64),
    low=st.integers(1, 10**6),
    high=st.integers(0, 10**7),
    short=st.integers(1, 3000),
    aspect=st.floats(1, MAX_ASPECT),
)
def test_no_picture_is_larger_than_the_largest_area(
    factor: int, low: int, high: int, short: int, aspect: float
) -> None:
    """The memory plan counts on it, also for long and thin pictures and for bounds that are close together."""
    most = max(low + high, factor**2)
    long = min(int(short * aspect), MAX_ASPECT * short)
    for height, width in ((short, long), (long, short), (short, MAX_ASPECT * short)):
        rows, columns = smart_resize(height, width, factor, low, most)
        assert rows * columns <= largest_area(factor, low, most)


def test_the_largest_area_of_released_models_is_their_limit(family: Preprocessor) -> None:
    assert family.most_patches == 16777216 // 256
    thin = attrs.evolve(FAMILY, min_pixels=1024, max_pixels=65536)
    assert Preprocessor(thin).most_patches > 65536 // 256, "a picture of 200 to 1 is larger"
