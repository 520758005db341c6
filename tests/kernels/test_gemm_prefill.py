"""The weight GEMM for many rows: near float64; the same bits in every tile, at every place, beside any neighbours."""

from __future__ import annotations

import attrs
import numpy as np
import pytest

from luce.compute import activations
from luce.compute.bf16 import round_bf16, widen_bf16
from luce.compute.device import Device
from luce.compute.gemm import Epilogue, WeightMatrix, scratch_for
from luce.compute.gemm_prefill import Tiling, choose_tiling, launch_gemm_prefill, prefill_rows, shared_bytes
from luce.compute.weight_fields import FLAT, FORMATS, read_blocks, tree_values
from tests.kernels.weights import random_rows

TILINGS = (
    Tiling(128, 2, 3, 2),
    Tiling(64, 2, 4, 3),
    Tiling(64, 1, 2, 2),
    Tiling(64, 2, 2, 2, True),
    Tiling(96, 2, 3, 2, True),
)
DEPTH = 1280
"""Two chunks of 1,024, the second short."""


@attrs.frozen(eq=False)
class Matrix:
    on_device: WeightMatrix
    values: np.ndarray
    """float64 [rows, depth]: what the tree multiplies, minima apart."""
    minima: np.ndarray

    @property
    def rows(self) -> int:
        return self.on_device.rows


def matrix(device: Device, name: str, rows: int, depth: int = DEPTH) -> Matrix:
    raw = random_rows(name, rows, depth)
    w, d, minima = tree_values(
        read_blocks(name, raw, depth, operands=device.operands), operands=device.operands
    )
    values = np.repeat(d.astype(np.float64), 256, axis=1)[:, :depth] * w
    return Matrix(WeightMatrix.load(device, name, raw, depth), values, minima)


def random_x(rows: int, depth: int = DEPTH, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng([seed, rows])
    return widen_bf16(round_bf16(rng.standard_normal((rows, depth)).astype(np.float32)))


def reference(m: Matrix, x: np.ndarray) -> np.ndarray:
    sums = x.astype(np.float64).reshape(len(x), -1, 32).sum(2)
    return x.astype(np.float64) @ m.values.T + sums @ m.minima.astype(np.float64).T


def product(
    device: Device,
    m: Matrix,
    x: np.ndarray,
    tiling: Tiling | None,
    *,
    epilogue: Epilogue = Epilogue.STORE,
    old: np.ndarray | None = None,
    stride: int | None = None,
    fill: int = 0x7FC0,
    blocks: int | None = None,
) -> np.ndarray:
    """float32 [rows of x, rows of W] or, for SWIGLU, a buffer of activations. Padded rows of x hold ``fill``."""
    rows, width, one = prefill_rows(len(x)), stride or m.rows, m.on_device
    out_depth = activations.padded_depth(m.rows // 2) if epilogue is Epilogue.SWIGLU else 0
    if epilogue is Epilogue.SWIGLU:
        out = device.array(np.full(activations.num_values(rows, out_depth, rows), 0x7FC0, np.uint16))
    else:
        # one row and perhaps some columns more, which nobody may touch
        start = np.full((len(x) + 1, width), 7, np.float32)
        if old is not None:
            start[: len(x), : m.rows] = old
        out = device.array(start)
    launch_gemm_prefill(
        device, one.format, one.records, device.array(activations.pack(x, rows, fill, operands=device.operands)),
        out, live=len(x), rows=rows, n=m.rows, depth=x.shape[1], epilogue=epilogue, width=width,
        out_depth=out_depth, tiling=tiling, blocks=blocks,
    )  # fmt: skip
    found = device.numpy(out)
    if epilogue is Epilogue.SWIGLU:
        return found
    assert (found[len(x)] == 7).all() and (found[:, m.rows :] == 7).all()
    return found[: len(x), : m.rows]


@pytest.mark.parametrize("name", FORMATS)
def test_near_float64_and_the_same_bits_in_every_tile(device: Device, name: str) -> None:
    m, x = matrix(device, name, 40), random_x(70)
    found = [product(device, m, x, tiling) for tiling in TILINGS]
    wanted = reference(m, x)
    assert np.max(np.abs(found[0] - wanted)) <= 2e-4 * np.sqrt(np.mean(wanted**2))
    for other in found[1:]:
        np.testing.assert_array_equal(other.view(np.uint32), found[0].view(np.uint32))
    wide = product(device, m, x, Tiling(192 if name in FLAT else 160, 2, 2, 2))
    np.testing.assert_array_equal(wide.view(np.uint32), found[0].view(np.uint32))


@pytest.mark.parametrize("name", FORMATS)
def test_rows_have_the_bits_of_steps(device: Device, name: str) -> None:
    m, x = matrix(device, name, 48), random_x(66)
    x[0], x[1], x[2, ::2] = 0.0, -0.0, -0.0
    found = product(device, m, x, None)
    for rows, first in ((1, 1), (4, 0), (16, 50)):
        y = device.zeros((rows, 48), np.float32)
        step = device.array(activations.pack(x[first : first + rows], 0, operands=device.operands))
        scratch = scratch_for(device, [m.on_device.plan(rows)])
        m.on_device.decode(step, y, rows, Epilogue.STORE, scratch)
        wanted = found[first : first + rows].view(np.uint32)
        np.testing.assert_array_equal(device.numpy(y).view(np.uint32), wanted, err_msg=f"{rows} rows")


@pytest.mark.parametrize("name", ["Q8_0", "Q4_K"])
def test_swiglu_has_the_bits_of_steps(device: Device, name: str) -> None:
    m, x = matrix(device, name, 2 * 40, 512), random_x(66, 512)
    packed = product(device, m, x, TILINGS[1], epilogue=Epilogue.SWIGLU)
    found, _, _ = activations.unpack(packed, 66, 40, prefill_rows(66), operands=device.operands)
    out = device.zeros(activations.num_values(16, 256, 0), np.uint16)
    step = device.array(activations.pack(x[:16], 0, operands=device.operands))
    scratch = scratch_for(device, [m.on_device.plan(16)])
    m.on_device.decode(step, out, 16, Epilogue.SWIGLU, scratch)
    np.testing.assert_array_equal(
        activations.unpack(device.numpy(out), 16, 40, 0, operands=device.operands)[0], found[:16]
    )


@pytest.mark.parametrize("depth", [DEPTH, 512])
@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("name", ["BF16", "Q4_K", "Q6_K"])
def test_a_block_takes_tile_after_tile(device: Device, name: str, split: bool, depth: int) -> None:
    """Rings, totals and rows on their way go from one tile to the next, with one chunk of k or several."""
    m, x = matrix(device, name, 72, depth), random_x(130, depth)
    tiling = Tiling(64, 2, 3, 2, split)
    one = product(device, m, x, tiling, blocks=1)
    np.testing.assert_array_equal(one.view(np.uint32), product(device, m, x, tiling).view(np.uint32))
    np.testing.assert_array_equal(one.view(np.uint32), product(device, m, x, TILINGS[0]).view(np.uint32))


@pytest.mark.parametrize("name", ["BF16", "Q4_K", "IQ4_XS"])
def test_neighbours_and_places_change_no_bit(device: Device, name: str) -> None:
    m, x = matrix(device, name, 24), random_x(9)
    alone = product(device, m, x, TILINGS[1])
    mixed = random_x(150, seed=1)
    mixed[::3] = np.nan
    places = [(37 * i + 5) % 149 for i in range(9)]
    mixed[places] = x
    found = product(device, m, mixed, None, fill=0x7F80)
    np.testing.assert_array_equal(found[places].view(np.uint32), alone.view(np.uint32))


@pytest.mark.parametrize(
    ("name", "rows", "stride", "tiling"),
    [
        ("Q8_0", 24, 32, TILINGS[1]),
        ("Q5_K", 24, 24, TILINGS[1]),
        ("IQ4_XS", 22, 28, TILINGS[3]),
        ("BF16", 22, 27, TILINGS[0]),
        ("BF16", 23, 29, Tiling(192, 2, 2, 2)),
    ],
)
def test_writes_its_columns_alone(device: Device, name: str, rows: int, stride: int, tiling: Tiling) -> None:
    """Rows in whole and in odd pieces, aligned or not; added to what is there or not."""
    m, x = matrix(device, name, rows), random_x(21)
    plain = product(device, m, x, tiling)
    old = np.random.default_rng(2).standard_normal((21, rows)).astype(np.float32)
    np.testing.assert_array_equal(product(device, m, x, tiling, stride=stride), plain)
    found = product(device, m, x, tiling, epilogue=Epilogue.ADD, old=old, stride=stride)
    np.testing.assert_array_equal(found, old + plain)


@pytest.mark.parametrize(
    ("name", "tiling"),
    [
        ("Q8_0", TILINGS[0]),
        ("Q4_K", TILINGS[1]),
        ("Q6_K", TILINGS[2]),
        ("Q5_K", TILINGS[4]),
        ("BF16", TILINGS[3]),
    ],
)
def test_swiglu_writes_the_next_products_activations(device: Device, name: str, tiling: Tiling) -> None:
    m, x = matrix(device, name, 2 * 40, 512), random_x(67, 512)
    plain = product(device, m, x, tiling).reshape(67, -1, 2, 8).astype(np.float64)
    gate, up = plain[:, :, 0].reshape(67, -1), plain[:, :, 1].reshape(67, -1)
    wanted = gate / (1 + np.exp(-gate)) * up
    rows = prefill_rows(67)
    packed = product(device, m, x, tiling, epilogue=Epilogue.SWIGLU)
    values, hi, lo = activations.unpack(packed, 67, 256, 128, operands=device.operands)
    assert rows == 128
    assert np.max(np.abs(values[:, :40] - wanted) - np.abs(wanted) / 256) <= 1e-6
    assert not values[:, 40:].any()  # what the padded depth multiplies
    again = activations.unpack(
        activations.pack(values, rows, operands=device.operands), 67, 256, rows, operands=device.operands
    )
    np.testing.assert_array_equal(hi, again[1])
    np.testing.assert_array_equal(lo, again[2])


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("epilogue", list(Epilogue))
def test_chosen_tiles_fit(device: Device, name: str, epilogue: Epilogue) -> None:
    for rows in (65, 128, 500, 4096):
        for blocks in (8, 320, 2176):
            tiling = choose_tiling(name, epilogue, rows, blocks, device)
            assert shared_bytes(name, epilogue, tiling) <= device.shared_limit
            assert tiling.x_stages >= 3 and tiling.w_stages >= 2
