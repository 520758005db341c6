"""The weight GEMM for 17 to 64 rows: the bits of the one for few rows, whoever does the work."""

from __future__ import annotations

import attrs
import numpy as np
import pytest

from luce.compute import activations
from luce.compute.device import Device
from luce.compute.gemm import Epilogue, WeightMatrix, scratch_for
from luce.compute.gemm_plan import WidePlan, plan_wide, wide_shared_bytes
from luce.compute.packing import interleave
from luce.compute.weight_fields import FORMATS
from tests.kernels.test_gemm_decode import error, exact, product, rows_of
from tests.kernels.weights import random_rows


def wide(
    matrix: WeightMatrix,
    x: np.ndarray,
    height: int,
    plan: WidePlan | None = None,
    before: np.ndarray | None = None,
) -> np.ndarray:
    device, rows = matrix.device, len(x)
    start = np.full((height, matrix.rows + 3), -7.0, np.float32) if before is None else before
    y = device.array(start)
    if plan is None:
        plan = plan_wide(
            matrix.format, matrix.rows, matrix.depth, height, device.multiprocessors, device.shared_limit
        )
    scratch = scratch_for(device, [plan])
    matrix.wide(
        device.array(activations.pack(x, height, fill=0x7FC0)),
        y,
        height,
        Epilogue.STORE if before is None else Epilogue.ADD,
        scratch,
        stride=start.shape[1],
        valid=rows,
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
    assert error(wanted, exact(name, raw, x[:16])) < 1e-5
    for rows, height in ((1, 32), (20, 32), (33, 64), (64, 64)):
        found = wide(matrix, x[:rows], height)
        np.testing.assert_array_equal(found[:16], wanted[:rows], err_msg=f"{rows} of {height}")


@pytest.mark.parametrize("name", ["Q4_K", "BF16"])
def test_who_does_the_work_changes_no_bit(device: Device, name: str) -> None:
    rows, depth = 200, 3328
    raw, x = random_rows(name, rows, depth), rows_of(30, depth)
    matrix = WeightMatrix.load(device, name, raw, depth)
    wanted = wide(matrix, x, 32)
    assert error(wanted, exact(name, raw, x)) < 1e-5
    start = plan_wide(name, rows, depth, 32, device.multiprocessors, device.shared_limit)
    for groups, stages, grid, slice_chunks in ((1, 2, 4, 1), (2, 2, 9, 1), (2, 1, 7, 2), (1, 3, 5, 2)):
        shared = wide_shared_bytes(name, 32, depth, groups, stages, slice_chunks)
        plan = attrs.evolve(
            start,
            groups=groups,
            stages=stages,
            grid=grid,
            slice_chunks=slice_chunks,
            shared=shared,
            parts=4 * 4 * 4 * 16 * 32,
            counts=4,
        )
        np.testing.assert_array_equal(wide(matrix, x, 32, plan), wanted, err_msg=str(plan))


def test_products_are_added(device: Device) -> None:
    raw, x = random_rows("Q4_K", 48, 1280), rows_of(40, 1280)
    matrix = WeightMatrix.load(device, "Q4_K", raw, 1280)
    before = np.random.default_rng(3).standard_normal((64, 51)).astype(np.float32)
    after = wide(matrix, x, 64, before=before)
    np.testing.assert_array_equal(after, before[:40, :48] + wide(matrix, x, 64))


def test_gate_and_up_become_activations_and_the_next_product_makes_their_sums(device: Device) -> None:
    gate, up = (random_rows("Q6_K", 136, 512, seed) for seed in (1, 2))
    first = WeightMatrix.load(device, "Q6_K", interleave(gate, up), 512)
    raw = random_rows("Q4_K", 48, 256)
    second = WeightMatrix.load(device, "Q4_K", raw, 256)
    x = rows_of(32, 512)
    few = device.array(np.full(activations.num_values(16, 136, 0), 0x7FC0, np.uint16))
    many = device.array(np.full(activations.num_values(32, 136, 32), 0x7FC0, np.uint16))
    plan = first.plan(16)
    scratch = scratch_for(device, [plan])
    first.decode(device.array(activations.pack(x[:16], 0)), few, 16, Epilogue.SWIGLU, scratch, plan=plan)
    first.wide(device.array(activations.pack(x, 32)), many, 32, Epilogue.SWIGLU, scratch)
    h, _, _ = activations.unpack(device.numpy(many), 32, 256, 32)
    np.testing.assert_array_equal(h[:16], activations.unpack(device.numpy(few), 16, 256, 0)[0])
    assert np.isfinite(h).all() and not h[:, 136:].any()
    y = device.empty((32, 48), np.float32)
    second.wide(many, y, 32, Epilogue.STORE, scratch, own_sums=True)
    np.testing.assert_array_equal(device.numpy(y), wide(second, h, 32))
