"""What enters the products of the vision tower: patches, and rows that are normalised; against float64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from luce.compute import activations
from luce.compute.device import Device
from luce.engines.qwen35.device.vision import layer_norm_shared
from luce.engines.qwen35.vision import position_corners, position_rows


def launch(
    device: Device,
    name: str,
    arguments: Sequence[Any],
    rows: int,
    width: int,
    warps: int,
    norm: int | None = None,
) -> np.ndarray:
    """Values [rows, width]; what nobody has written is NaN. ``norm``: width of the rows of layer_norm."""
    height, depth = 16, activations.padded_depth(width)
    out = device.array(np.full(activations.num_values(height, width, height), 0x7FC1, np.uint16))
    kernel = device.kernel("vision_rows.cu", name, {"WIDTH": norm} if norm else None)
    shared = layer_norm_shared(norm) if norm else 0
    kernel((-(-warps // 8), 1, 1), 256, [*arguments, out, np.int32(height), np.int32(depth)], shared=shared)
    found = activations.unpack(device.numpy(out), height, depth, height, operands=device.operands)[0]
    assert np.isnan(found[rows:]).all() and not found[:rows, width:].any()
    return found[:rows, :width]


@pytest.mark.parametrize(("width", "group"), [(48, 4), (768, 1), (1152, 4), (40, 1)])
def test_layer_norm(device: Device, width: int, group: int) -> None:
    rng = np.random.default_rng(width)
    rows = 11
    x = (rng.standard_normal((rows * group, width)) * 3 + 5).astype(np.float32)
    weight, bias = rng.standard_normal((2, width)).astype(np.float32)
    given = [*map(device.array, (x, weight, bias)), np.float32(1e-6), *map(np.int32, (rows, group))]
    found = launch(device, "layer_norm", given, rows, width * group, rows * group, width)
    wide = x.astype(np.float64)
    wide -= wide.mean(1, keepdims=True)
    wanted = wide / np.sqrt((wide**2).mean(1, keepdims=True) + 1e-6) * weight + bias
    np.testing.assert_allclose(found.reshape(wanted.shape), wanted, rtol=2**-8, atol=2e-6)
    x[1:] = np.nan
    alone = launch(
        device, "layer_norm", [device.array(x), *given[1:]], rows, width * group, rows * group, width
    )
    np.testing.assert_array_equal(alone[0, :width], found[0, :width])


def test_patches(device: Device) -> None:
    """Of shades and of the numbers that they stand for: the same."""
    rng = np.random.default_rng(6)
    size, rows = 24, 9
    table = rng.standard_normal((3, 256)).astype(np.float32)
    shades = rng.integers(0, 256, (rows, 3 * size), np.uint8)
    shades[0, :2] = 0, 255
    values = np.stack(
        [table[channel][shades[:, channel * size : (channel + 1) * size]] for channel in range(3)], 1
    )
    values = values.reshape(rows, 3 * size)
    given = [device.array(shades), device.array(table), *map(np.int32, (rows, 3 * size, size))]
    found = launch(device, "patches_of_shades", given, rows, 3 * size, rows)
    np.testing.assert_array_equal(found, device.operands.rounded(values))
    given = [device.array(values), *map(np.int32, (rows, 3 * size))]
    np.testing.assert_array_equal(launch(device, "patches_of_values", given, rows, 3 * size, rows), found)


@pytest.mark.parametrize(("side", "grid", "width"), [(48, (6, 10), 1152), (6, (6, 6), 40), (5, (2, 14), 132)])
def test_positions_are_numpys(device: Device, side: int, grid: tuple[int, int], width: int) -> None:
    """Bit for bit."""
    rng = np.random.default_rng(side)
    table = rng.standard_normal((side * side, width)).astype(np.float32)
    corners, shares = position_corners(side, grid, 2)
    rows = len(corners)
    out = device.array(np.full((rows + 1, width), np.nan, np.float32))
    given = [*map(device.array, (table, corners.astype(np.int32), shares)), np.int32(rows), np.int32(width)]
    device.kernel("vision_rows.cu", "positions")((-(-rows // 8), 1, 1), 256, [*given, out])
    found = device.numpy(out)
    assert np.isnan(found[rows]).all()
    np.testing.assert_array_equal(found[:rows], position_rows(table, side, grid, 2))
