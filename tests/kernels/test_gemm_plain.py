"""The weight GEMM with plain loads: the bits of the one for few rows, in both layouts of activations."""

from __future__ import annotations

import numpy as np
import pytest

from luce.compute import activations
from luce.compute.device import Device
from luce.compute.gemm import Epilogue, WeightMatrix
from luce.compute.weight_fields import FORMATS
from tests.kernels.conftest import open_test_device
from tests.kernels.test_gemm_decode import error, exact, product, rows_of
from tests.kernels.weights import random_rows


def plain(
    matrix: WeightMatrix,
    x: np.ndarray,
    tile: int,
    before: np.ndarray | None = None,
    fill: int = 0x7FC0,
) -> np.ndarray:
    device, rows = matrix.device, len(x)
    packed = activations.pack(x, tile, fill=fill, operands=device.operands)
    start = np.full((rows, matrix.rows + 3), -7.0, np.float32) if before is None else before
    y = device.array(start)
    epilogue = Epilogue.STORE if before is None else Epilogue.ADD
    matrix.plain(
        device.array(packed),
        y,
        activations.padded_rows(rows, tile),
        tile,
        epilogue,
        stride=start.shape[1],
        valid=rows,
    )
    found = device.numpy(y)
    np.testing.assert_array_equal(found[:, matrix.rows :], start[:, matrix.rows :])
    return found[:, : matrix.rows]


@pytest.mark.parametrize("name", FORMATS)
def test_products_have_the_bits_of_the_gemm_for_few_rows(device: Device, name: str) -> None:
    raw, x = random_rows(name, 40, 1792), rows_of(20, 1792)
    matrix = WeightMatrix.load(device, name, raw, 1792)
    wanted = product(matrix, x[:16], 16)
    assert error(wanted, exact(name, raw, x[:16], device.operands)) < 1e-5
    for rows, tile in ((1, 0), (3, 0), (16, 0), (20, 0), (1, 64), (20, 64), (20, 8)):
        np.testing.assert_array_equal(
            plain(matrix, x[:rows], tile)[:16], wanted[:rows], err_msg=f"{rows} {tile}"
        )


def test_products_are_added(device: Device) -> None:
    raw, x = random_rows("Q5_K", 32, 512), rows_of(70, 512)
    matrix = WeightMatrix.load(device, "Q5_K", raw, 512)
    before = rows_of(70, 35, seed=2)
    after = plain(matrix, x, 64, before.copy())
    np.testing.assert_array_equal(after, before[:, :32] + plain(matrix, x, 64))


def test_sums_of_more_chunks_than_fit_into_shared_memory_at_once() -> None:
    """64 rows of a matrix as deep as the 27B's: 68 KiB of them, in the 64 KiB that an AMD GPU's block may have."""
    device = open_test_device()
    device.shared_limit = 65536
    raw, x = random_rows("Q4_0", 16, 17 * 1024), rows_of(64, 17 * 1024)
    matrix = WeightMatrix.load(device, "Q4_0", raw, 17 * 1024)
    assert matrix.fits(4) and not matrix.fits(64)
    np.testing.assert_array_equal(plain(matrix, x, 0)[:4], product(matrix, x[:4], 4))
