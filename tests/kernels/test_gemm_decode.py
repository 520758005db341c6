"""The weight GEMM for few rows: near float64, and the same bits whatever stands beside a row or does the work."""

from __future__ import annotations

import itertools

import attrs
import numpy as np
import pytest

from luce.compute import activations
from luce.compute.device import Device
from luce.compute.gemm import Epilogue, RowNorm, WeightMatrix, scratch_for
from luce.compute.gemm_cluster_plan import TABLE_BYTES, ClusterPlan, Form, launch
from luce.compute.gemm_plan import DecodePlan, plan_decode, shared_bytes
from luce.compute.operands import Operands
from luce.compute.packing import interleave
from luce.compute.weight_fields import FORMATS, read_blocks, tree_values
from tests.kernels.test_norm import rms
from tests.kernels.weights import random_rows


def rows_of(rows: int, depth: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, rows, depth]).standard_normal((rows, depth)).astype(np.float32)


def exact(name: str, raw: np.ndarray, x: np.ndarray, operands: Operands) -> np.ndarray:
    """The products in float64, from the numbers that enter the tree."""
    depth = x.shape[1]
    w, d, minima = (
        part.astype(np.float64)
        for part in tree_values(read_blocks(name, raw, depth, operands=operands), operands=operands)
    )
    values, hi, lo = activations.unpack(
        activations.pack(x, 0, operands=operands), len(x), depth, 0, operands=operands
    )
    full = w * np.repeat(d, 256, axis=1)[:, :depth]
    sums = hi.astype(np.float64) + lo
    return values.astype(np.float64) @ full.T + sums[:, : minima.shape[1]] @ minima.T


def product(
    matrix: WeightMatrix,
    x: np.ndarray,
    bucket: int,
    *,
    fill: int = 0x7FC0,
    plan: DecodePlan | ClusterPlan | None = None,
    epilogue: Epilogue = Epilogue.STORE,
    before: np.ndarray | None = None,
) -> np.ndarray:
    """[len(x), N]; rows of the bucket past len(x) hold ``fill`` (NaN by default)."""
    device = matrix.device
    padding = device.operands.widen(np.array([fill], np.uint16)) * device.operands.unit
    more = np.full((bucket, x.shape[1]), padding, np.float32)
    more[: len(x)] = x
    y = device.array(np.full((bucket, matrix.rows), -7.0, np.float32) if before is None else before)
    plan = plan or matrix.plan(bucket)
    scratch = scratch_for(device, [plan])
    matrix.decode(
        device.array(activations.pack(more, 0, operands=device.operands)),
        y,
        bucket,
        epilogue,
        scratch,
        valid=len(x),
        plan=plan,
    )
    assert not device.numpy(scratch.counts).any()
    found = device.numpy(y)
    if before is None:
        np.testing.assert_array_equal(found[len(x) :], -7.0)
    return found[: len(x)]


def error(found: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.max(np.abs(found - wanted)) / np.sqrt(np.mean(wanted**2)))


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("bucket", [1, 2, 4, 8, 16, 32])
def test_products_are_right(device: Device, name: str, bucket: int) -> None:
    raw, x = random_rows(name, 44, 1536), rows_of(bucket, 1536)
    matrix = WeightMatrix.load(device, name, raw, 1536)
    assert error(product(matrix, x, bucket), exact(name, raw, x, device.operands)) < 1e-5


@pytest.mark.parametrize("name", ["Q4_K", "Q8_0", "BF16"])
@pytest.mark.parametrize(("rows", "depth"), [(16, 256), (9, 1024), (200, 256), (130, 3584)])
def test_shapes(device: Device, name: str, rows: int, depth: int) -> None:
    raw, x = random_rows(name, rows, depth), rows_of(3, depth)
    matrix = WeightMatrix.load(device, name, raw, depth)
    assert error(product(matrix, x, 4), exact(name, raw, x, device.operands)) < 1e-5


@pytest.mark.parametrize("name", FORMATS)
def test_a_row_has_its_bits_in_every_company(device: Device, name: str) -> None:
    raw = random_rows(name, 32, 2304)
    matrix = WeightMatrix.load(device, name, raw, 2304)
    x = rows_of(64, 2304)
    alone = product(matrix, x[:1], 1)
    for rows, bucket in ((2, 2), (3, 4), (4, 4), (8, 8), (16, 16), (33, 64), (64, 64)):
        y = product(matrix, x[:rows], bucket)
        np.testing.assert_array_equal(y[:1], alone, err_msg=f"{rows} rows")
    for fill in (0, 0x7FC0, 0x7F80, 0x3F80):  # absent neighbours: zero, NaN, infinity, ones
        np.testing.assert_array_equal(product(matrix, x[:1], 8, fill=fill), alone)
    last = product(matrix, x[[5, 6, 7, 0]], 16)
    np.testing.assert_array_equal(last[3:], alone)


def single_variants(name: str, bucket: int, blocks: int, depth: int) -> list[DecodePlan]:
    chunks = -(-depth // 1024)
    made = []
    for warps, stages, grid, slots, slice_chunks, aligned in (
        (1, 2, 1, 2, chunks, False),
        (4, 2, 3, 3, chunks, True),
        (5, 3, 7, 2, chunks, False),
        (12, 2, 2, 5, chunks, False),
        (12, 2, 1, 1, chunks, False),  # warps have to wait for a place for their sums
        (3, 4, 40, 2, chunks, False),
        (4, 2, 5, 1, 1, False),
        (4, 3, 6, 2, 2, False),
    ):
        shared = shared_bytes(name, bucket, depth, warps, stages, slots, slice_chunks)
        places = max(blocks, grid)
        made.append(
            DecodePlan(
                warps,
                stages,
                slots,
                1,
                grid,
                slice_chunks,
                aligned,
                shared,
                places * chunks * 16 * bucket,
                places,
            )
        )
    return made


def cluster_variants(name: str, rows: int, depth: int, bucket: int) -> list[ClusterPlan]:
    """Launches of all kinds: warps, stages, blocks, slices; slots; grid."""
    kinds = (
        (Form(1, 2), 2, 1),
        (Form(4, 2), 3, 3),
        (Form(5, 3), 2, 7),
        (Form(12, 2), 5, 2),
        (Form(12, 2), 1, 1),  # warps have to wait for a place for their sums
        (Form(3, 4), 2, 40),
        (Form(4, 2, slice_chunks=1), 1, 5),
        (Form(4, 3, slice_chunks=3), 2, 6),
        (Form(4, 2, 2), 3, 3),
        (Form(5, 3, 2), 1, 1),
        (Form(3, 2, 2, slice_chunks=3), 2, 5),
        (Form(3, 2, 2, cluster=2), 2, 4),
        (Form(2, 2, cluster=4), 1, 4),
        (Form(3, 2, cluster=2, slice_chunks=3), 2, 6),
    )
    return [launch(name, rows, depth, bucket, *kind) for kind in kinds]


@pytest.mark.parametrize(
    ("name", "bucket"), [("Q4_K", 1), ("Q6_K", 2), ("BF16", 4), ("Q8_0", 8), ("IQ4_XS", 16)]
)
def test_who_does_the_work_changes_no_bit(device: Device, name: str, bucket: int) -> None:
    depth, rows = 3328, 233  # an odd number of row-blocks
    raw, x = random_rows(name, rows, depth), rows_of(bucket, depth)
    matrix = WeightMatrix.load(device, name, raw, depth)
    wanted = product(matrix, x, bucket)
    assert error(wanted, exact(name, raw, x, device.operands)) < 1e-5
    for plan in [*single_variants(name, bucket, 15, depth), *cluster_variants(name, rows, depth, bucket)]:
        np.testing.assert_array_equal(product(matrix, x, bucket, plan=plan), wanted, err_msg=str(plan))


@pytest.mark.parametrize("bucket", [1, 16])
def test_values_from_a_table_have_the_same_bits(device: Device, bucket: int) -> None:
    """However many of IQ4_XS's values are looked up in shared memory instead of in registers."""
    depth, rows = 1280, 104
    raw, x = random_rows("IQ4_XS", rows, depth), rows_of(bucket, depth)
    matrix = WeightMatrix.load(device, "IQ4_XS", raw, depth)
    single, cluster = (
        single_variants("IQ4_XS", bucket, 7, depth)[1],
        cluster_variants("IQ4_XS", rows, depth, bucket)[-3],
    )
    wanted = product(matrix, x, bucket, plan=single)
    assert error(wanted, exact("IQ4_XS", raw, x, device.operands)) < 1e-5
    for plan, table in itertools.product((single, cluster), (2, 4, 6, 8)):
        tabled = attrs.evolve(plan, table=table, shared=plan.shared + TABLE_BYTES)
        np.testing.assert_array_equal(product(matrix, x, bucket, plan=tabled), wanted, err_msg=str(tabled))


@pytest.mark.parametrize("clusters", [False, True])
@pytest.mark.parametrize(("limit", "most"), [(232448, 64), (101376, 32)])
def test_launches_fit_into_shared_memory(limit: int, most: int, clusters: bool) -> None:
    shapes = ((34816, 5120), (5120, 17408), (1024, 3584), (7168, 1024), (248320, 2560), (16, 256))
    for name, (out, depth), rows in itertools.product(FORMATS, shapes, (1, 2, 4, 8, 16, 32, 64)):
        if rows > most:
            continue
        plan = plan_decode(name, out, depth, rows, 132, limit, clusters)
        assert plan.shared <= (limit + 1024) // plan.resident - 1024
        assert isinstance(plan, DecodePlan) or (clusters and plan.grid % plan.cluster == 0)


@pytest.mark.parametrize("bucket", [1, 4, 16])
def test_products_are_added_to_the_residual(device: Device, bucket: int) -> None:
    raw, x = random_rows("Q4_K", 48, 1280), rows_of(bucket, 1280)
    matrix = WeightMatrix.load(device, "Q4_K", raw, 1280)
    before = rows_of(bucket, 48, seed=1)
    after = product(matrix, x, bucket, epilogue=Epilogue.ADD, before=before)
    np.testing.assert_array_equal(after, before + product(matrix, x, bucket))


@pytest.mark.parametrize("bucket", [1, 2, 4, 8, 16])
def test_gate_and_up_become_activations(device: Device, bucket: int) -> None:
    gate, up = (random_rows("Q6_K", 72, 512, seed) for seed in (1, 2))
    matrix = WeightMatrix.load(device, "Q6_K", interleave(gate, up), 512)
    x = rows_of(bucket, 512)
    h = device.array(np.full(activations.num_values(bucket, 72, 0), 0x7FC0, np.uint16))
    plan = matrix.plan(bucket)
    matrix.decode(
        device.array(activations.pack(x, 0, operands=device.operands)),
        h,
        bucket,
        Epilogue.SWIGLU,
        scratch_for(device, [plan]),
    )
    values, _, _ = activations.unpack(device.numpy(h), bucket, 256, 0, operands=device.operands)
    g, u = (exact("Q6_K", rows, x, device.operands) for rows in (gate, up))
    wanted = g / (1 + np.exp(-g)) * u
    assert np.all(np.abs(values[:, :72] - wanted) <= 2**-8 * np.abs(wanted) + 1e-4)
    assert not values[:, 72:].any()


@pytest.mark.parametrize(("name", "bucket"), [("Q4_K", 1), ("Q5_K", 4), ("Q4_K", 16)])
def test_sums_can_be_made_by_the_product(device: Device, name: str, bucket: int) -> None:
    raw, x = random_rows(name, 32, 2304), rows_of(bucket, 2304)
    matrix = WeightMatrix.load(device, name, raw, 2304)
    packed = activations.pack(x, 0, operands=device.operands)
    packed[bucket * 2304 :] = 0x7FC0
    y = device.empty((bucket, 32), np.float32)
    scratch = scratch_for(device, [matrix.plan(bucket)])
    matrix.decode(device.array(packed), y, bucket, Epilogue.STORE, scratch, own_sums=True)
    np.testing.assert_array_equal(device.numpy(y), product(matrix, x, bucket))


@pytest.mark.parametrize(
    ("name", "bucket", "valid", "depth"),
    [
        *(("Q4_K", 1, 1, 2304), ("Q5_K", 2, 2, 1280), ("BF16", 4, 3, 2048), ("BF16", 1, 1, 1032)),
        *(("Q8_0", 8, 5, 256), ("BF16", 8, 7, 1024)),
    ],
)
def test_the_norm_can_be_made_by_the_product(
    device: Device, name: str, bucket: int, valid: int, depth: int
) -> None:
    out = 400 if device.multiprocessors < 64 else 16384  # fewer rows would not be worth it there
    raw, x = random_rows(name, out, depth), 3 * rows_of(bucket, depth)
    x[valid:] = np.nan
    scale = 1 + rows_of(1, depth, seed=2)[0]
    matrix = WeightMatrix.load(device, name, raw, depth)
    scratch = scratch_for(device, [matrix.plan(bucket)])
    apart, at_once = (device.array(np.full((bucket, out), -7.0, np.float32)) for _ in range(2))
    normed = device.array(rms(device, x, scale, 0))
    assert matrix.norms(bucket)
    matrix.decode(normed, apart, bucket, Epilogue.STORE, scratch, valid=valid)
    norm = RowNorm(device.array(scale), 1e-6)
    matrix.decode(device.array(x), at_once, bucket, Epilogue.STORE, scratch, valid=valid, norm=norm)
    np.testing.assert_array_equal(device.numpy(at_once), device.numpy(apart))
    assert np.isfinite(device.numpy(at_once)).all()


def test_norms_of_many_values_are_left_to_a_kernel_of_their_own(device: Device) -> None:
    matrix = WeightMatrix.load(device, "Q8_0", random_rows("Q8_0", 16, 5120), 5120)
    assert [matrix.norms(rows) for rows in (1, 2, 4, 64)] == [True, False, False, False]
