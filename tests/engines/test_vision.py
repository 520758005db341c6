"""The vision tower against the float64 oracle, and its tables."""

from __future__ import annotations

import numpy as np
import pytest

from luce.engines.qwen35.vision import QUERY_ROWS, VisionTower, merge_order, position_rows
from luce.engines.seam import PatchImage
from tests.engines import oracle
from tests.engines.harness import same_bits
from tests.engines.models import tiny_model


def picture(grid: tuple[int, int], seed: int = 0) -> PatchImage:
    count = grid[0] * grid[1]
    patches = np.random.default_rng(seed).standard_normal((count, 48)).astype(np.float32)
    return PatchImage(patches, grid, b"", count // 4)


@pytest.mark.parametrize("grid", [(2, 2), (2, 10), (12, 2), (6, 6), (8, 14), (20, 20)])
def test_rows_equal_the_oracle(grid: tuple[int, int]) -> None:
    config, weights = tiny_model()
    assert config.vision is not None and weights.vision is not None
    image = picture(grid)
    rows = VisionTower(config.vision, weights.vision)(image)
    assert rows.shape == (image.num_tokens, config.text.hidden) and rows.dtype == np.float32
    expected = oracle.run_vision(config.vision, weights.vision, image.patches, grid)
    np.testing.assert_allclose(rows, expected, atol=1e-4, rtol=0)


def test_more_patches_than_one_group_of_queries() -> None:
    assert QUERY_ROWS < 20 * 20


def test_order_of_patches() -> None:
    rows, columns = merge_order((4, 6), 2)
    assert np.array_equal(np.stack([rows, columns], axis=1), oracle.vision_order((4, 6), 2))


def test_positions_at_the_tables_own_size_are_the_table() -> None:
    table = np.random.default_rng(0).standard_normal((36, 5)).astype(np.float32)
    rows, columns = merge_order((6, 6), 2)
    assert same_bits(position_rows(table, 6, (6, 6), 2), table[rows * 6 + columns])


def test_corners_are_aligned() -> None:
    table = np.random.default_rng(0).standard_normal((36, 5)).astype(np.float32)
    found = position_rows(table, 6, (10, 4), 2)
    rows, columns = merge_order((10, 4), 2)
    for r, c, corner in ((0, 0, 0), (0, 3, 5), (9, 0, 30), (9, 3, 35)):
        at = int(np.flatnonzero((rows == r) & (columns == c))[0])
        np.testing.assert_allclose(found[at], table[corner], rtol=1e-6)


def test_a_picture_does_not_depend_on_the_ones_before() -> None:
    config, weights = tiny_model()
    assert config.vision is not None and weights.vision is not None
    images = [picture(grid, seed) for seed, grid in enumerate([(4, 6), (2, 10), (4, 6), (8, 8)])]
    alone = [VisionTower(config.vision, weights.vision)(image) for image in images]
    assert not same_bits(alone[0], alone[2]), "the trap: same size, other picture"
    tower = VisionTower(config.vision, weights.vision)
    for order in ([0, 1, 2, 3], [3, 2, 1, 0], [2, 2, 0, 3]):
        for index in order:
            assert same_bits(tower(images[index]), alone[index])
