"""Products with a small float32 matrix: values, and one row's bits in every launch."""

from __future__ import annotations

import numpy as np
import pytest

from luce.compute import activations
from luce.compute.device import Device
from luce.compute.gemm import Epilogue, WeightMatrix, scratch_for
from luce.engines.qwen35.device.small import SmallMatrix, launch_small
from tests.kernels.weights import random_rows

DEPTH, OUT = 700, 21
RNG = np.random.default_rng(8)
X = RNG.standard_normal((20, DEPTH)).astype(np.float32)
W = RNG.standard_normal((OUT, DEPTH)).astype(np.float32) / np.float32(DEPTH**0.5)


@pytest.fixture(scope="module")
def matrix(device: Device) -> SmallMatrix:
    made = SmallMatrix("gates", (W[:9], W[9:]))
    made.upload(device)
    return made


def product(
    device: Device,
    matrix: SmallMatrix,
    x: np.ndarray,
    tile: int,
    *,
    fill: int = 0x7FC0,
    **how: int | bool | None,
) -> np.ndarray:
    """What is written for the rows of ``x``, between columns and rows that are left alone."""
    rows = len(x)
    height = activations.padded_rows(rows, tile)
    y = device.array(np.full((height + 1, OUT + 3), -7.0, np.float32))
    packed = device.array(activations.pack(x, tile, fill=fill, operands=device.operands))
    launch_small(device, matrix, packed, y, rows=rows, height=height, tile=tile, **how)  # type: ignore[arg-type]
    found = device.numpy(y)
    assert (found[:, OUT:] == -7).all() and (found[rows:] == -7).all()
    return found[:rows, :OUT]


def test_weights_are_not_rounded(device: Device, matrix: SmallMatrix) -> None:
    exact = device.operands.rounded(X).astype(np.float64) @ W.T.astype(np.float64)
    found = product(device, matrix, X, 64)
    assert np.abs(found - exact).max() < 2e-6 * np.sqrt(np.mean(exact**2))


@pytest.mark.parametrize(
    ("rows", "tile", "outputs", "beside"),
    [
        (1, 0, 1, True),
        (3, 0, 1, True),
        (5, 0, 2, False),
        (20, 0, 2, False),
        (20, 0, 8, False),
        (7, 64, 8, False),
    ],
)
def test_a_row_has_its_bits_in_every_launch(
    device: Device, matrix: SmallMatrix, rows: int, tile: int, outputs: int, beside: bool
) -> None:
    """What pads the rows is NaN, and so is a neighbour."""
    alone = [product(device, matrix, X[row : row + 1], 0)[0] for row in range(min(rows, 3))]
    x = X[:rows].copy()
    if rows > 3:
        x[3] = np.nan
    found = product(device, matrix, x, tile, outputs=outputs, beside=beside)
    for row, wanted in enumerate(alone):
        np.testing.assert_array_equal(found[row].view(np.uint32), wanted.view(np.uint32))
    assert rows <= 3 or np.isnan(found[3]).all()


@pytest.mark.parametrize("height", [1, 4])
def test_beside_a_large_product_both_keep_their_bits(
    device: Device, matrix: SmallMatrix, height: int
) -> None:
    """Of the same input; the launch before lets the small one start."""
    rows = max(1, height - 1)
    large = WeightMatrix.load(device, "BF16", random_rows("BF16", 80, DEPTH), DEPTH)
    scratch = scratch_for(device, [large.plan(height)])
    packed = device.array(activations.pack(X[:height], 0, operands=device.operands))
    alone, first = (device.array(np.full((height, 80), -7.0, np.float32)) for _ in range(2))
    second = device.array(np.full((height, OUT + 3), -7.0, np.float32))
    large.decode(packed, alone, height, Epilogue.STORE, scratch, valid=rows)
    large.decode(packed, first, height, Epilogue.STORE, scratch, valid=rows, followed=True)
    launch_small(device, matrix, packed, second, rows=rows, height=height, tile=0, beside=True)
    np.testing.assert_array_equal(device.numpy(first), device.numpy(alone))
    found = device.numpy(second)
    np.testing.assert_array_equal(found[:rows, :OUT], product(device, matrix, X[:rows], 0))
    assert (found[:, OUT:] == -7).all() and (found[rows:] == -7).all()
