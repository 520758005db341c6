"""Attention of the vision tower on a device: values against float64, and bits that depend on the picture alone."""

from __future__ import annotations

import os

import numpy as np
import pytest

from luce.compute.bf16 import round_bf16, widen_bf16
from luce.compute.device import Device
from luce.engines.qwen35.config import VisionConfig
from luce.engines.qwen35.device.vision_attention import VisionAttention, turn_table

ON_GPU = os.environ.get("LUCE_TEST_DEVICE", "host") != "host"
CASES = [(2, 64, (10, 14)), (3, 72, (8, 18)), (2, 80, (2, 4)), (4, 16, (16, 16))]
if ON_GPU:
    CASES += [(16, 72, (64, 64)), (12, 64, (30, 34))]


def tower(heads: int, dim: int) -> VisionConfig:
    return VisionConfig(
        depth=1, hidden=heads * dim, heads=heads, ffn=64, patch_size=16, temporal_patch_size=2, merge_size=2,
        grid_side=8, out_hidden=64,
    )  # fmt: skip


def stored(values: np.ndarray) -> np.ndarray:
    return widen_bf16(round_bf16(values.astype(np.float32))).astype(np.float64)


def reference(x: np.ndarray, bias: np.ndarray, turn: np.ndarray, heads: int, dim: int) -> np.ndarray:
    """Full attention [N, H · D] in float64, of queries, keys and values rounded as they are handed on."""
    parts = (x.astype(np.float64) + bias).reshape(len(x), 3, heads, dim)
    c, s = turn[:, None, :, 0].astype(np.float64), turn[:, None, :, 1].astype(np.float64)

    def turned(v: np.ndarray) -> np.ndarray:
        a, b = v[..., : dim // 2], v[..., dim // 2 :]
        return stored(np.concatenate([a * c - b * s, b * c + a * s], -1))

    q, k, v = turned(parts[:, 0]), turned(parts[:, 1]), stored(parts[:, 2])
    out = np.empty((len(x), heads, dim))
    for head in range(heads):
        scores = q[:, head] @ k[:, head].T / np.sqrt(dim)
        p = np.exp(scores - scores.max(-1, keepdims=True))
        out[:, head] = p @ v[:, head] / p.sum(-1, keepdims=True)
    return out.reshape(len(x), heads * dim)


def attend(
    device: Device,
    config: VisionConfig,
    x: np.ndarray,
    bias: np.ndarray | None,
    turn: np.ndarray,
    spare: int = 0,
) -> np.ndarray:
    """``spare``: columns and rows of NaN behind what belongs to the picture."""
    kernels = VisionAttention(device, config)
    count, width = x.shape
    wide = np.full((count + spare, width + 4 * spare), np.nan, np.float32)
    wide[:count, :width] = x
    tiles = kernels.tiles(device, count)
    assert sum(part.nbytes for part in (tiles.q, tiles.keys, tiles.values)) == kernels.tiles_nbytes(count)
    y = device.array(np.full((count + spare, config.hidden), np.nan, np.float32))
    added = None if bias is None else device.array(bias)
    kernels.inputs(count, device.array(wide), added, device.array(turn), tiles)
    kernels.attend(count, tiles, y)
    found = device.numpy(y)
    assert np.isnan(found[count:]).all()
    return found[:count]


@pytest.mark.parametrize("heads, dim, grid", CASES)
def test_values(device: Device, heads: int, dim: int, grid: tuple[int, int]) -> None:
    config, count = tower(heads, dim), grid[0] * grid[1]
    rng = np.random.default_rng(dim)
    x = rng.standard_normal((count, 3 * heads * dim)).astype(np.float32) * 2
    bias = rng.standard_normal(3 * heads * dim).astype(np.float32)
    turn = turn_table(grid, dim, 2)
    expected = reference(x, bias, turn, heads, dim)
    got = attend(device, config, x, bias, turn, spare=3)
    error = np.abs(got - expected)
    assert (error / np.sqrt((expected**2).mean(-1, keepdims=True))).max() < 1.5e-2
    assert np.sqrt((error**2).mean() / (expected**2).mean()) < 2.5e-3
    again = attend(device, config, x, bias, turn)
    assert (again.view(np.uint32) == got.view(np.uint32)).all()


def test_no_bias_is_a_bias_of_zero(device: Device) -> None:
    heads, dim, grid = 2, 64, (6, 10)
    x = np.random.default_rng(4).standard_normal((60, 3 * heads * dim)).astype(np.float32)
    turn = turn_table(grid, dim, 2)
    zero = attend(device, tower(heads, dim), x, np.zeros(3 * heads * dim, np.float32), turn)
    none = attend(device, tower(heads, dim), x, None, turn)
    assert (zero.view(np.uint32) == none.view(np.uint32)).all()
    assert np.isfinite(none).all()
