"""The weight GEMM for many rows: near float64; the same bits in every tile, at every place, beside any neighbours."""

from __future__ import annotations

import attrs
import numpy as np
import pytest

from luce.compute import activations, packing
from luce.compute.bf16 import round_bf16, widen_bf16
from luce.compute.device import Array, Device
from luce.compute.gemm_prefill import (
    Epilogue,
    Tiling,
    choose_tiling,
    launch_gemm_prefill,
    prefill_rows,
    shared_bytes,
)
from luce.compute.weight_fields import FLAT, FORMATS, read_blocks, tree_values
from tests.kernels.weights import random_rows

TILINGS = (Tiling(128, 2, 3, 2), Tiling(64, 2, 4, 3), Tiling(64, 1, 2, 2))
DEPTH = 1280
"""Two chunks of 1,024, the second short."""


@attrs.frozen(eq=False)
class Matrix:
    name: str
    rows: int
    records: Array
    values: np.ndarray
    """float64 [rows, DEPTH]: what the tree multiplies, minima apart."""
    minima: np.ndarray


def matrix(device: Device, name: str, rows: int, depth: int = DEPTH) -> Matrix:
    raw = random_rows(name, rows, depth)
    w, d, minima = tree_values(read_blocks(name, raw, depth))
    values = np.repeat(d.astype(np.float64), 256, axis=1)[:, :depth] * w
    return Matrix(name, rows, device.array(packing.pack(name, raw, depth).records), values, minima)


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
    fill: int = 0x7FC0,
) -> np.ndarray:
    """float32 [rows of x, padded rows of W] or, for SWIGLU, a buffer of activations; padded rows of x hold ``fill``."""
    rows, width = prefill_rows(len(x)), -(-m.rows // 16) * 16
    out_depth = activations.padded_depth(m.rows // 2) if epilogue == Epilogue.SWIGLU else 0
    if epilogue == Epilogue.SWIGLU:
        out = device.array(np.full(activations.num_values(rows, out_depth, rows), 0x7FC0, np.uint16))
    else:
        # one row more, which nobody may touch
        out = device.array(np.full((len(x) + 1, width), 7, np.float32) if old is None else old)
    launch_gemm_prefill(
        device, m.name, m.records, device.array(activations.pack(x, rows, fill)), out, live=len(x), rows=rows, n=m.rows,
        depth=x.shape[1], epilogue=epilogue, width=None if epilogue == Epilogue.SWIGLU else width, out_depth=out_depth,
        tiling=tiling,
    )  # fmt: skip
    found = device.numpy(out)
    if epilogue == Epilogue.STORE:
        assert (found[len(x)] == 7).all()
        return found[: len(x)]
    return found


@pytest.mark.parametrize("name", FORMATS)
def test_near_float64_and_the_same_bits_in_every_tile(device: Device, name: str) -> None:
    m, x = matrix(device, name, 40), random_x(70)
    found = [product(device, m, x, tiling) for tiling in TILINGS]
    wanted = reference(m, x)
    assert np.max(np.abs(found[0][:, :40] - wanted)) <= 2e-4 * np.sqrt(np.mean(wanted**2))
    assert not found[0][:, 40:].any()
    for other in found[1:]:
        np.testing.assert_array_equal(other.view(np.uint32), found[0].view(np.uint32))
    if name in FLAT:
        wide = product(device, m, x, Tiling(192, 2, 2, 2))
        np.testing.assert_array_equal(wide.view(np.uint32), found[0].view(np.uint32))


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


@pytest.mark.parametrize("name", ["Q8_0", "Q5_K"])
def test_adds_to_what_is_there(device: Device, name: str) -> None:
    m, x = matrix(device, name, 24), random_x(21)
    plain = product(device, m, x, TILINGS[1])
    old = np.random.default_rng(2).standard_normal((21, 32)).astype(np.float32)
    found = product(device, m, x, TILINGS[1], epilogue=Epilogue.ADD, old=old)
    np.testing.assert_array_equal(found, old + plain)


@pytest.mark.parametrize(
    ("name", "tiling"), [("Q8_0", TILINGS[0]), ("Q4_K", TILINGS[1]), ("Q6_K", TILINGS[2])]
)
def test_swiglu_writes_the_next_products_activations(device: Device, name: str, tiling: Tiling) -> None:
    m, x = matrix(device, name, 2 * 40, 512), random_x(67, 512)
    plain = product(device, m, x, tiling).reshape(67, -1, 2, 8).astype(np.float64)
    gate, up = plain[:, :, 0].reshape(67, -1), plain[:, :, 1].reshape(67, -1)
    wanted = gate / (1 + np.exp(-gate)) * up
    rows = prefill_rows(67)
    packed = product(device, m, x, tiling, epilogue=Epilogue.SWIGLU)
    values, hi, lo = activations.unpack(packed, 67, 256, 128)
    assert rows == 128
    assert np.max(np.abs(values[:, :40] - wanted) - np.abs(wanted) / 256) <= 1e-6
    assert not values[:, 40:].any()  # what the padded depth multiplies
    again = activations.unpack(activations.pack(values, rows), 67, 256, rows)
    np.testing.assert_array_equal(hi, again[1])
    np.testing.assert_array_equal(lo, again[2])


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("epilogue", list(Epilogue))
def test_chosen_tiles_fit(device: Device, name: str, epilogue: Epilogue) -> None:
    for rows in (65, 128, 500, 4096):
        for blocks in (8, 320, 2176):
            tiling = choose_tiling(name, epilogue, rows, blocks, device)
            assert shared_bytes(name, epilogue, tiling) <= device.shared_limit
            assert tiling.x_stages >= 3
