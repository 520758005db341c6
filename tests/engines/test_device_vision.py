"""The vision tower on a device against the one in numpy: values near, bits independent of other pictures."""

from __future__ import annotations

import numpy as np
import pytest

from luce.compute.device import Device
from luce.compute.room import room_bytes
from luce.engines.qwen35.config import VisionConfig
from luce.engines.qwen35.device.vision import GRAPHS, DeviceVision, vision_arrays, vision_weight_arrays
from luce.engines.qwen35.vision import VisionTower
from luce.engines.qwen35.weights import VisionBlockWeights, VisionWeights
from luce.engines.seam import PatchImage
from luce.errors import RequestError
from tests.engines.device.rooms import watch_rooms
from tests.kernels.conftest import device as device

CONFIG = VisionConfig(
    depth=2,
    hidden=64,
    heads=4,
    ffn=96,
    patch_size=8,
    temporal_patch_size=1,
    merge_size=2,
    grid_side=6,
    out_hidden=48,
)


def weights(config: VisionConfig, seed: int = 0) -> VisionWeights:
    rng = np.random.default_rng(seed)
    d, merged = config.hidden, config.hidden * config.merge_size**2

    def matrix(rows: int, depth: int) -> np.ndarray:
        return (rng.standard_normal((rows, depth)) / depth**0.5).astype(np.float32)

    def vector(size: int, around: float = 0.0) -> np.ndarray:
        return (around + 0.1 * rng.standard_normal(size)).astype(np.float32)

    def block() -> VisionBlockWeights:
        return VisionBlockWeights(
            norm1=vector(d, 1), norm1_bias=vector(d), qkv=matrix(3 * d, d), qkv_bias=vector(3 * d),
            proj=matrix(d, d), proj_bias=vector(d), norm2=vector(d, 1), norm2_bias=vector(d),
            fc1=matrix(config.ffn, d), fc1_bias=vector(config.ffn), fc2=matrix(d, config.ffn), fc2_bias=vector(d),
        )  # fmt: skip

    return VisionWeights(
        patch=matrix(d, config.in_channels * config.patch_size**2), patch_bias=vector(d),
        positions=matrix(config.grid_side**2, d), blocks=tuple(block() for _ in range(config.depth)),
        merger_norm=vector(d, 1), merger_norm_bias=vector(d), merger_fc1=matrix(merged, merged),
        merger_fc1_bias=vector(merged), merger_fc2=matrix(config.out_hidden, merged),
        merger_fc2_bias=vector(config.out_hidden),
    )  # fmt: skip


def picture(grid: tuple[int, int], seed: int) -> PatchImage:
    count = grid[0] * grid[1]
    values = np.random.default_rng(seed).standard_normal((count, 3 * CONFIG.patch_size**2)).astype(np.float32)
    return PatchImage(values, grid, b"", count // 4)


@pytest.fixture(scope="module")
def tower(device: Device) -> DeviceVision:
    return DeviceVision(device, CONFIG, weights(CONFIG), 160)


@pytest.mark.parametrize("grid", [(2, 2), (4, 6), (8, 8), (10, 14)])
def test_rows_are_near_those_of_numpy(tower: DeviceVision, grid: tuple[int, int]) -> None:
    """Up to 64 patches by the products for few rows, more by those for many."""
    image = picture(grid, 3)
    wanted = VisionTower(CONFIG, weights(CONFIG))(image)
    found = tower(image)
    assert found.shape == (image.num_tokens, CONFIG.out_hidden)
    assert np.max(np.abs(found - wanted)) < 0.03 * np.sqrt(np.mean(wanted**2))


def test_a_pictures_bits_are_its_own(tower: DeviceVision) -> None:
    images = [picture(grid, seed) for seed, grid in enumerate([(10, 14), (4, 4), (8, 10), (10, 14)])]
    alone = [tower(image) for image in images]
    for order in ((3, 2, 1, 0), (0, 0, 3), (1, 2, 0)):
        for place in order:
            np.testing.assert_array_equal(tower(images[place]), alone[place])
    assert not np.array_equal(alone[0], alone[3])


def test_the_first_the_second_and_the_third_of_a_size_are_alike(device: Device) -> None:
    """Launch by launch, while it is recorded, and from the recording; more sizes than are kept."""
    tower = DeviceVision(device, CONFIG, weights(CONFIG), 160)
    grids = [(2, 2 * i) for i in range(1, GRAPHS + 2)]
    images = [picture(grid, seed) for seed, grid in enumerate(grids)]
    first = [tower(image) for image in images]
    for _ in range(2):
        for image, found in zip(images, first, strict=True):
            np.testing.assert_array_equal(tower(image), found)
            np.testing.assert_array_equal(tower(image), found)
    assert len(tower._graphs) == GRAPHS


def test_shades_are_the_numbers_that_they_stand_for(tower: DeviceVision) -> None:
    rng = np.random.default_rng(8)
    shades = rng.integers(0, 256, (24, 3 * CONFIG.patch_size**2), np.uint8)
    for seed in range(2):
        scale = np.random.default_rng(seed).standard_normal((3, 256)).astype(np.float32)
        image = PatchImage(shades, (4, 6), b"", 6, scale)
        np.testing.assert_array_equal(tower(image), tower(PatchImage(image.patches, (4, 6), b"", 6)))


def test_what_does_not_fit_is_refused(tower: DeviceVision) -> None:
    with pytest.raises(RequestError, match="168 patches, the server takes 160"):
        tower(picture((12, 14), 0))
    with pytest.raises(RequestError, match="do not fit the grid"):
        tower(PatchImage(np.zeros((9, 192), np.float32), (3, 3), b"", 2))


@pytest.mark.parametrize("beside", [False, True])
def test_the_plan_is_what_is_allocated(device: Device, monkeypatch: pytest.MonkeyPatch, beside: bool) -> None:
    rooms = watch_rooms(device, monkeypatch)
    tower = DeviceVision(device, CONFIG, weights(CONFIG), 160, beside=beside)
    ((size, taken),) = rooms
    working = vision_arrays(CONFIG, 160, beside=beside)
    assert ("kept rows" in {spec.name for spec in working}) == beside
    for spec in working:
        assert tower._arrays[spec.name].nbytes == spec.nbytes
    planned = [spec.nbytes for spec in (*vision_weight_arrays(CONFIG), *working)]
    assert sorted(taken[:-1]) == sorted(planned)  # the last one tells the attention kernel's sizes
    assert taken[-1] < 64 and room_bytes(taken) >= size >= room_bytes(taken[:-1])
