"""Norms and pointwise steps against float64, in both layouts, and the bits of a row whatever stands beside it."""

from __future__ import annotations

import numpy as np
import pytest

from luce.compute import activations
from luce.compute.device import Device
from luce.compute.norms import NORM_SHARED, norm_threads
from luce.engines.qwen35.device.descriptors import PASS, SAMPLE

WIDTHS = [64, 512, 1032, 5120]


def header(device: Device, rows: int = 0, samples: int = 0) -> object:
    made = np.zeros(1, PASS)
    made["rows"], made["samples"] = rows, samples
    return device.array(made.view(np.uint8))


def output(device: Device, rows: int, width: int, tile: int) -> tuple[object, list[np.int32]]:
    """A buffer full of NaN and the arguments that describe it."""
    out = device.array(np.full(activations.num_values(rows, width, tile), 0x7FC1, np.uint16))
    return out, [
        np.int32(v) for v in (activations.padded_rows(rows, tile), tile, activations.padded_depth(width))
    ]


def rms(
    device: Device, x: np.ndarray, scale: np.ndarray, tile: int, picked: list[int] | None = None
) -> np.ndarray:
    """Packed output of the rows of x, or of the picked ones."""
    width, rows = x.shape[1], len(x if picked is None else picked)
    samples = None
    if picked is not None:
        made = np.zeros(len(picked), SAMPLE)
        made["row"] = picked
        samples = device.array(made.view(np.uint8))
    out, shape = output(device, rows, width, tile)
    device.kernel("norm.cu", "rms_norm")(
        (activations.padded_rows(rows, tile), 1, 1),
        norm_threads(width),
        [
            header(device, rows, rows),
            samples,
            device.array(x),
            device.array(scale),
            np.float32(1e-6),
            np.int32(width),
            out,
            *shape,
        ],
        shared=NORM_SHARED,
    )
    return device.numpy(out)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("tile", [0, 16])
def test_rms_norm(device: Device, width: int, tile: int) -> None:
    rng = np.random.default_rng(width)
    x = (rng.standard_normal((5, width)) * 10.0 ** rng.integers(-3, 3, (5, 1))).astype(np.float32)
    scale = rng.uniform(0.5, 2, width).astype(np.float32)
    packed = rms(device, x, scale, tile)
    found, hi, lo = activations.unpack(packed, 5, width, tile, operands=device.operands)
    wide = x.astype(np.float64)
    wanted = wide / np.sqrt((wide**2).mean(1, keepdims=True) + 1e-6) * scale
    np.testing.assert_allclose(found, wanted, rtol=2**-8, atol=1e-6)
    # the rounding of the exact value, but for ties that f32 decides
    assert (found == device.operands.rounded(wanted.astype(np.float32))).mean() > 0.99
    again, its_hi, its_lo = activations.unpack(
        activations.pack(found, tile, operands=device.operands), 5, width, tile, operands=device.operands
    )
    for mine, its in ((found, again), (hi, its_hi), (lo, its_lo)):
        np.testing.assert_array_equal(mine, its)


@pytest.mark.parametrize("tile", [0, 8])
def test_a_rows_bits_do_not_depend_on_the_others(device: Device, tile: int) -> None:
    rng = np.random.default_rng(9)
    row, scale = rng.standard_normal(1032).astype(np.float32), rng.standard_normal(1032).astype(np.float32)
    alone = activations.unpack(rms(device, row[None], scale, 0), 1, 1032, 0, operands=device.operands)
    for rows, at in ((1, 0), (3, 1), (8, 7), (33, 20), (64, 63)):
        x = np.full((rows, 1032), np.nan, np.float32)
        x[::2] = rng.standard_normal(1032)
        x[at] = row
        found = activations.unpack(rms(device, x, scale, tile), rows, 1032, tile, operands=device.operands)
        for mine, its in zip(found, alone, strict=True):
            np.testing.assert_array_equal(mine[at], its[0])


def test_rows_of_samples_are_picked(device: Device) -> None:
    rng = np.random.default_rng(4)
    x, scale = rng.standard_normal((7, 264)).astype(np.float32), np.ones(264, np.float32)
    all_rows = activations.unpack(rms(device, x, scale, 0), 7, 264, 0, operands=device.operands)[0]
    picked = activations.unpack(rms(device, x, scale, 0, [6, 0, 3]), 3, 264, 0, operands=device.operands)[0]
    np.testing.assert_array_equal(picked, all_rows[[6, 0, 3]])


@pytest.mark.parametrize("function", ["ROUND", "SWIGLU"])
@pytest.mark.parametrize("tile", [0, 8])
def test_pointwise(device: Device, function: str, tile: int) -> None:
    rng = np.random.default_rng(5)
    rows, width = 5, 328
    columns = 2 * width if function == "SWIGLU" else width
    x = (rng.standard_normal((rows, columns + 8)) * 3).astype(np.float32)
    bias = rng.standard_normal(width).astype(np.float32)
    out, shape = output(device, rows, width, tile)
    device.kernel("pointwise.cu", "pointwise", {"FUNCTION": function})(
        (2, rows + 2, 1),
        64,
        [
            None,
            np.int32(rows),
            device.array(x),
            np.int32(columns + 8),
            None if function == "SWIGLU" else device.array(bias),
            np.int32(width),
            out,
            *shape,
        ],
    )
    found, hi, _ = activations.unpack(device.numpy(out), rows, width, tile, operands=device.operands)
    x = x[:, :columns]
    if function == "SWIGLU":
        parts = x.reshape(rows, -1, 2, 8)
        gate, up = parts[:, :, 0].reshape(rows, -1), parts[:, :, 1].reshape(rows, -1)
        wanted = gate / (1 + np.exp(-gate.astype(np.float64))) * up
    else:
        wanted = x + bias
    np.testing.assert_allclose(found, wanted, rtol=2**-8, atol=1e-6)
    padded = np.zeros((rows, len(hi[0]) * 32))
    padded[:, :width] = found
    np.testing.assert_allclose(hi, padded.reshape(rows, -1, 32).sum(2), rtol=2**-8, atol=1e-5)
