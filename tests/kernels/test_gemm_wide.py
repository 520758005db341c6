"""The weight GEMM for 17 to 64 rows: the bits of the one for few rows, whoever does the work."""

from __future__ import annotations

import numpy as np
import pytest

from luce.compute import activations
from luce.compute.device import Device
from luce.compute.gemm import Epilogue, WeightMatrix, scratch_for
from luce.compute.gemm_plan import WidePlan, wide_plan
from luce.compute.packing import interleave
from luce.compute.weight_fields import FORMATS
from tests.kernels.test_gemm_decode import error, exact, product, rows_of
from tests.kernels.weights import random_rows


def wide(
    matrix: WeightMatrix,
    x: np.ndarray,
    tile: int,
    plan: WidePlan | None = None,
    before: np.ndarray | None = None,
) -> np.ndarray:
    """[rows of x, rows of W]; x is padded to ``tile`` rows of NaN."""
    device, rows = matrix.device, len(x)
    start = np.full((tile, matrix.rows + 3), -7.0, np.float32) if before is None else before
    y = device.array(start)
    plan = plan or matrix.wide_plan(min(tile, 64))
    scratch = scratch_for(device, [plan], -(-rows // 64))
    matrix.wide(
        device.array(activations.pack(x, tile, fill=0x7FC0, operands=device.operands)),
        y,
        rows,
        Epilogue.STORE if before is None else Epilogue.ADD,
        scratch,
        tile=tile,
        stride=start.shape[1],
        plan=plan,
    )
    assert not device.numpy(scratch.counts).any()
    found = device.numpy(y)
    np.testing.assert_array_equal(found[rows:], start[rows:])
    np.testing.assert_array_equal(found[:, matrix.rows :], start[:, matrix.rows :])
    return found[:rows, : matrix.rows]


@pytest.mark.parametrize("name", FORMATS)
def test_products_have_the_bits_of_the_gemm_for_few_rows(device: Device, name: str) -> None:
    raw, x = random_rows(name, 90, 1792), rows_of(64, 1792)
    matrix = WeightMatrix.load(device, name, raw, 1792)
    wanted = product(matrix, x[:16], 16)
    assert error(wanted, exact(name, raw, x[:16], device.operands)) < 1e-5
    for rows, height in ((1, 32), (20, 32), (33, 64), (64, 64)):
        found = wide(matrix, x[:rows], height)
        np.testing.assert_array_equal(found[:16], wanted[:rows], err_msg=f"{rows} of {height}")


@pytest.mark.parametrize("name", ["Q4_K", "BF16", "Q6_K"])
def test_who_does_the_work_changes_no_bit(device: Device, name: str) -> None:
    rows, depth = 200, 3328
    raw, x = random_rows(name, rows, depth), rows_of(30, depth)
    matrix = WeightMatrix.load(device, name, raw, depth)
    wanted = product(matrix, x, 32)
    for grid, slices, passes in ((4, 1, 1), (2, 1, 2), (9, 2, 1), (5, 3, 2), (8, 4, 3)):
        plan = wide_plan(
            name, 13, depth, 32, grid, device.shared_limit, slices=slices, passes=passes, x_stages=2
        )
        assert plan is not None
        np.testing.assert_array_equal(wide(matrix, x, 32, plan), wanted, err_msg=str(plan))
    for met, passes, slices, rest_passes in ((4, 1, 4, 1), (8, 2, 3, 2)):
        deal = {"met": met, "passes": passes, "slices": slices, "rest_passes": rest_passes}
        plan = wide_plan(name, 13, depth, 32, 4, device.shared_limit, **deal)
        assert plan is not None
        np.testing.assert_array_equal(wide(matrix, x, 32, plan), wanted, err_msg=str(plan))


def test_products_are_added(device: Device) -> None:
    raw, x = random_rows("Q4_K", 48, 1280), rows_of(40, 1280)
    matrix = WeightMatrix.load(device, "Q4_K", raw, 1280)
    before = np.random.default_rng(3).standard_normal((64, 51)).astype(np.float32)
    after = wide(matrix, x, 64, before=before)
    np.testing.assert_array_equal(after, before[:40, :48] + wide(matrix, x, 64))


def test_tiles_of_64_of_a_prefill(device: Device) -> None:
    raw, x = random_rows("Q4_K", 40, 1280), rows_of(130, 1280)
    matrix = WeightMatrix.load(device, "Q4_K", raw, 1280)
    found = wide(matrix, x, 192)
    for first in (0, 64, 128):
        np.testing.assert_array_equal(found[first : first + 64], wide(matrix, x[first : first + 64], 64))


@pytest.mark.parametrize(
    "deal",
    [{"passes": 2}, {"slices": 2, "passes": 2}, {"met": 8, "slices": 2}],
    ids=["whole", "slices", "whole and slices"],
)
def test_gate_and_up_become_activations_with_sums(device: Device, deal: dict[str, int]) -> None:
    gate, up = (random_rows("Q6_K", 136, 1280, seed) for seed in (1, 2))
    matrix = WeightMatrix.load(device, "Q6_K", interleave(gate, up), 1280)
    x = rows_of(40, 1280)
    few = device.array(np.full(activations.num_values(16, 136, 0), 0x7FC0, np.uint16))
    many = device.array(np.full(activations.num_values(64, 136, 64), 0x7FC0, np.uint16))
    plan = wide_plan("Q6_K", 17, 1280, 64, 5, device.shared_limit, **deal)
    assert plan is not None
    scratch = scratch_for(device, [plan, matrix.plan(16)])
    matrix.decode(
        device.array(activations.pack(x[:16], 0, operands=device.operands)), few, 16, Epilogue.SWIGLU, scratch
    )
    matrix.wide(
        device.array(activations.pack(x, 64, operands=device.operands)),
        many,
        40,
        Epilogue.SWIGLU,
        scratch,
        tile=64,
        plan=plan,
    )
    assert not device.numpy(scratch.counts).any()
    h, hi, lo = activations.unpack(device.numpy(many), 40, 256, 64, operands=device.operands)
    np.testing.assert_array_equal(
        h[:16], activations.unpack(device.numpy(few), 16, 256, 0, operands=device.operands)[0]
    )
    assert np.isfinite(h).all() and not h[:, 136:].any()
    again = activations.unpack(
        activations.pack(h, 64, operands=device.operands), 40, 256, 64, operands=device.operands
    )
    np.testing.assert_array_equal(hi, again[1])
    np.testing.assert_array_equal(lo, again[2])
