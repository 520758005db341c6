"""Products of the vision tower: near float64, whatever becomes of them; the same bits in every tile, at every place."""

from __future__ import annotations

import numpy as np
import pytest

from luce.compute import activations
from luce.compute.bf16 import round_bf16, widen_bf16
from luce.compute.device import Device
from luce.compute.gemm_prefill import prefill_rows
from luce.compute.gemm_tower import (
    TOKENS,
    TowerEpilogue,
    TowerMatrix,
    choose_tokens,
    launch_gemm_tower,
    tower_matrix_bytes,
)
from tests.kernels.conftest import device as device

LIVE, DEPTH = 83, 200


def stored(values: np.ndarray) -> np.ndarray:
    return widen_bf16(round_bf16(values.astype(np.float32)))


class Product:
    def __init__(self, device: Device, rows: int) -> None:
        rng = np.random.default_rng(rows)
        self.device, self.rows = device, rows
        self.x = stored(rng.standard_normal((LIVE, DEPTH)))
        self.w = stored(rng.standard_normal((rows, DEPTH)) / DEPTH**0.5)
        self.bias, self.old = rng.standard_normal(rows).astype(np.float32), rng.standard_normal((LIVE, rows))
        self.old = self.old.astype(np.float32)
        self.matrix = TowerMatrix.load(device, self.w, self.bias)
        self.wanted = self.x.astype(np.float64) @ self.w.astype(np.float64).T + self.bias

    def run(
        self,
        epilogue: TowerEpilogue,
        tokens: int | None = None,
        blocks: int | None = None,
        x: np.ndarray | None = None,
    ) -> np.ndarray:
        """float32 [live, rows] or, for a gelu, activations [height, padded depth]; rows behind the last are NaN."""
        x = self.x if x is None else x
        device, height = self.device, prefill_rows(len(x))
        gelu = epilogue in (TowerEpilogue.GELU, TowerEpilogue.GELU_ERF)
        if gelu:
            start = np.full(activations.num_values(height, self.rows, height), 0x7FC0, np.uint16)
        else:
            start = np.vstack([self.old[: len(x)], np.full((1, self.rows), 7, np.float32)])
        to = device.array(start)
        packed = device.array(activations.pack(x, height, 0x7FC0, operands=device.operands))
        launch_gemm_tower(
            device, self.matrix, packed, to, live=len(x), epilogue=epilogue, tokens=tokens, blocks=blocks
        )
        found = device.numpy(to)
        if gelu:
            return activations.unpack(
                found, height, activations.padded_depth(self.rows), height, operands=device.operands
            )[0]
        assert (found[-1] == 7).all()
        return found[:-1]


@pytest.mark.parametrize("rows", [40, 200])
def test_near_float64_and_the_same_bits_in_every_tile(device: Device, rows: int) -> None:
    case = Product(device, rows)
    found = case.run(TowerEpilogue.STORE)
    assert np.max(np.abs(found - case.wanted)) < 1e-5
    for tokens in (*TOKENS, 64, 176):
        np.testing.assert_array_equal(case.run(TowerEpilogue.STORE, tokens), found)
        np.testing.assert_array_equal(case.run(TowerEpilogue.ADD, tokens), case.old + found)


def test_a_block_takes_tile_after_tile(device: Device) -> None:
    """Its warpgroups in turn; more tiles than the ring has stages, an odd number of them."""
    case = Product(device, 300)
    many = np.tile(case.x, (2, 1))
    found = case.run(TowerEpilogue.STORE, 64, x=case.x)
    np.testing.assert_array_equal(case.run(TowerEpilogue.STORE, 64, blocks=1), found)
    case.old = np.tile(case.old, (2, 1))
    for blocks in (1, 2):
        got = case.run(TowerEpilogue.STORE, 64, blocks, many)
        np.testing.assert_array_equal(got, np.tile(found, (2, 1)))


def test_neighbours_change_no_bit(device: Device) -> None:
    case = Product(device, 40)
    found = case.run(TowerEpilogue.STORE)
    x = case.x.copy()
    x[::3] = np.nan
    np.testing.assert_array_equal(case.run(TowerEpilogue.STORE, x=x)[1::3], found[1::3])
    np.testing.assert_array_equal(case.run(TowerEpilogue.STORE, x=case.x[:5]), found[:5])


@pytest.mark.parametrize("tokens", [64, 144])
def test_gelus_write_the_next_products_inputs(device: Device, tokens: int) -> None:
    case = Product(device, 40)
    v = case.run(TowerEpilogue.STORE).astype(np.float64)
    tanh = 0.5 * v * (1 + np.tanh(np.sqrt(2 / np.pi) * (v + 0.044715 * v**3)))
    for epilogue, near in ((TowerEpilogue.GELU, 1e-6), (TowerEpilogue.GELU_ERF, 1e-3)):
        values = case.run(epilogue, tokens)
        assert np.max(np.abs(values[:LIVE, :40] - tanh) - np.abs(tanh) / 256) <= near
        assert not values[:LIVE, 40:64].any()
        assert np.isnan(values[LIVE:]).all() and np.isnan(values[:, 64:]).all()


def test_sizes(device: Device) -> None:
    case = Product(device, 130)
    assert case.matrix.nbytes == tower_matrix_bytes(130, DEPTH) == 256 * 256 * 2
    assert choose_tokens(4096, 1152, 132) == 144  # 261 tiles in two rounds
    for rows in (4, 100, 1024, 5000):
        assert choose_tokens(rows, 3456, 132) in TOKENS
