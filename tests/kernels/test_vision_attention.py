"""Attention of the vision tower on a device: values against float64, and bits that depend on the picture alone."""

from __future__ import annotations

import os

import numpy as np
import pytest

from luce.compute import activations
from luce.compute.bf16 import round_bf16, widen_bf16
from luce.compute.device import Device
from luce.compute.gemm_prefill import prefill_rows
from luce.compute.gemm_tower import TowerEpilogue, TowerMatrix, launch_gemm_tower
from luce.engines.qwen35.config import VisionConfig
from luce.engines.qwen35.device.vision_attention import VisionAttention, paired_rows, tile_values, turn_table

ON_GPU = os.environ.get("LUCE_TEST_DEVICE", "host") != "host"
CASES = [(2, 64, (10, 14)), (2, 72, (8, 18)), (2, 80, (2, 4)), (4, 16, (16, 16)), (1, 64, (2, 32))]
if ON_GPU:
    CASES += [(16, 72, (64, 64)), (12, 64, (30, 34)), (16, 72, (46, 50))]
DEPTH = 40


def tower(heads: int, dim: int) -> VisionConfig:
    return VisionConfig(
        depth=1, hidden=heads * dim, heads=heads, ffn=64, patch_size=16, temporal_patch_size=2, merge_size=2,
        grid_side=8, out_hidden=64,
    )  # fmt: skip


def stored(values: np.ndarray) -> np.ndarray:
    return widen_bf16(round_bf16(values.astype(np.float32)))


def reference(x: np.ndarray, turn: np.ndarray, heads: int, dim: int) -> np.ndarray:
    """Full attention [N, H · D] in float64, of queries, keys and values rounded as they are handed on."""
    parts = x.astype(np.float64).reshape(len(x), 3, heads, dim)
    c, s = turn[:, None, :, 0].astype(np.float64), turn[:, None, :, 1].astype(np.float64)

    def turned(v: np.ndarray) -> np.ndarray:
        a, b = v[..., : dim // 2], v[..., dim // 2 :]
        return stored(np.concatenate([a * c - b * s, b * c + a * s], -1)).astype(np.float64)

    q, k, v = turned(parts[:, 0]), turned(parts[:, 1]), stored(parts[:, 2]).astype(np.float64)
    out = np.empty((len(x), heads, dim))
    for head in range(heads):
        scores = q[:, head] @ k[:, head].T / np.sqrt(dim)
        p = np.exp(scores - scores.max(-1, keepdims=True))
        out[:, head] = p @ v[:, head] / p.sum(-1, keepdims=True)
    return out.reshape(len(x), heads * dim)


class Case:
    """Patches, and the matrix that makes queries, keys and values of them."""

    def __init__(self, device: Device, config: VisionConfig, count: int, seed: int = 0) -> None:
        self.device, self.config = device, config
        self.heads, self.dim = config.heads, config.hidden // config.heads
        rng = np.random.default_rng([seed, self.dim])
        self.x = stored(rng.standard_normal((count, DEPTH)))
        self.w = stored(rng.standard_normal((3 * config.hidden, DEPTH)) * 2 / DEPTH**0.5)
        self.bias = rng.standard_normal(3 * config.hidden).astype(np.float32)
        order = paired_rows(self.heads, self.dim)
        self._matrix = TowerMatrix.load(device, self.w[order], self.bias[order])

    def qkv(self) -> np.ndarray:
        return self.x.astype(np.float64) @ self.w.astype(np.float64).T + self.bias

    def tiles(self, turn: np.ndarray, x: np.ndarray, tokens: int | None = None, room: int = 0) -> np.ndarray:
        """Of the rows ``x``; ``room`` rows more than there are; neighbours of the last row are not finite."""
        device, rows = self.device, prefill_rows(len(x))
        to = device.zeros(tile_values(self.config, rows + room), np.uint16)
        launch_gemm_tower(
            device, self._matrix, device.array(activations.pack(x, rows, 0x7FC0, operands=device.operands)), to,
            live=len(x), epilogue=TowerEpilogue.HEADS, turn=device.array(turn), tokens=tokens,
            shape={"HEADS": self.heads, "HEAD_DIM": self.dim},
        )  # fmt: skip
        return device.numpy(to)

    def attend(self, tiles: np.ndarray, count: int, wgmma: bool | None = None) -> np.ndarray:
        """float32 [count, hidden]."""
        device, rows = self.device, prefill_rows(count)
        depth = activations.padded_depth(self.config.hidden)
        y = device.array(np.full(activations.num_values(rows, depth, rows), 0x7FC0, np.uint16))
        kernel = VisionAttention(device, self.config, wgmma=wgmma)
        kernel.attend(count, device.array(tiles), y, rows, depth)
        found = activations.unpack(device.numpy(y), rows, depth, rows, operands=device.operands)[0]
        assert np.isnan(found[count:]).all() and np.isnan(found[:, self.config.hidden :]).all()
        return found[:count, : self.config.hidden]


@pytest.mark.parametrize("heads, dim, grid", CASES)
def test_values(device: Device, heads: int, dim: int, grid: tuple[int, int]) -> None:
    config, count = tower(heads, dim), grid[0] * grid[1]
    case, turn = Case(device, config, count), turn_table(grid, dim, 2)
    expected = reference(case.qkv(), turn, heads, dim)
    tiles = case.tiles(turn, case.x)
    values = case.attend(tiles, count)
    error = np.abs(values - expected)
    rms = np.sqrt((expected**2).mean(-1, keepdims=True))
    assert ((error - 2**-8 * np.abs(expected)) / rms).max() < 1.5e-2  # beside the output's own rounding
    assert np.sqrt((error**2).mean() / (expected**2).mean()) < 4e-3
    for wgmma in (False, True) if dim in (64, 72, 80) else (False,):
        np.testing.assert_array_equal(case.attend(tiles, count, wgmma), values, err_msg=f"wgmma {wgmma}")


def test_operands_are_the_same_in_every_tile(device: Device) -> None:
    """And what pads heads stays zero, when a smaller picture comes after a larger one."""
    heads, dim, grid = 2, 72, (10, 14)
    case = Case(device, tower(heads, dim), 140)
    turn = turn_table(grid, dim, 2)
    found = [case.tiles(turn, case.x, tokens) for tokens in (64, 144, 192)]
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])
    records = found[0].reshape(3, heads, -1)
    keys = records[:, :, : 2 * 64 * 80].reshape(3, heads, 2, 8, 10, 8, 8)
    assert not keys[:, :, :, :, 9].any() and keys[:, :, :, :, 8].any()
    assert not keys[2, :, :, 2:].any()  # rows behind the last
    assert not keys[2, :, :, 1, :, 4:].any() and keys[2, :, :, 1, :, :4].any()
    few = case.tiles(turn, case.x[:70], room=64).reshape(3, heads, -1)
    np.testing.assert_array_equal(few[0], records[0])
    assert not few[2].any()
