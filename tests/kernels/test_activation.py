"""kernels/activation.h: every width of producer writes the same bits, those of the numpy twin."""

from __future__ import annotations

import numpy as np
import pytest

from luce.compute import activations
from luce.compute.device import Device
from luce.compute.operands import Operands


def rows_of(rows: int, depth: int) -> np.ndarray:
    rng = np.random.default_rng(rows * 1000 + depth)
    return (rng.standard_normal((rows, depth)) * 2.0 ** rng.integers(-8, 9, (rows, depth))).astype(np.float32)


@pytest.mark.parametrize("operands", list(Operands))
@pytest.mark.parametrize("tile", [0, 8, 64])
@pytest.mark.parametrize("rows", [1, 3, 16, 33])
def test_unpack_undoes_pack(rows: int, tile: int, operands: Operands) -> None:
    x = rows_of(rows, 520)
    packed = activations.pack(x, tile, fill=0x7FC0, operands=operands)
    assert len(packed) == activations.num_values(rows, 520, tile)
    values, hi, lo = activations.unpack(packed, rows, 520, tile, operands=operands)
    least = (
        2**-21 if operands is Operands.F16 else 0
    )  # half of the last place of a subnormal number, times 16
    assert np.max((np.abs(values - x) - least) / np.abs(x)) <= (2**-11 if operands is Operands.F16 else 2**-8)
    padded = np.zeros((rows, 768))
    padded[:, :520] = values
    sums = padded.reshape(rows, 24, 32).sum(2)
    assert np.max(np.abs(hi + lo.astype(np.float64) - sums)) <= 2**-15 * np.max(np.abs(sums))


@pytest.mark.parametrize("operands", list(Operands))
def test_the_step_layout_is_the_order_of_the_matrix_instruction(operands: Operands) -> None:
    x = np.arange(256, dtype=np.float32).reshape(1, 256)
    values, _, _ = activations.unpack(activations.pack(x, 0, operands=operands), 1, 256, 0, operands=operands)
    np.testing.assert_array_equal(values, x)
    words = activations.pack(x, 0, operands=operands)[:256].reshape(8, 4, 2, 2, 2)
    for t in range(4):  # a lane's 16 bytes: b0, b1 of step 0, then of step 1
        k = [2 * t, 2 * t + 1, 2 * t + 8, 2 * t + 9]
        wanted = np.array([*k, *(16 + i for i in k)], np.float32)
        np.testing.assert_array_equal(operands.widen(words[0, t].reshape(-1)) * operands.unit, wanted)


@pytest.mark.parametrize("width", [1, 2, 4, 8, 16, 32])
@pytest.mark.parametrize(("rows", "tile"), [(1, 0), (2, 0), (7, 0), (20, 0), (5, 8), (70, 64)])
def test_producers_write_the_layout(device: Device, width: int, rows: int, tile: int) -> None:
    x = rows_of(rows, 600)
    x[rows // 2, 40] = np.inf
    height, depth = activations.padded_rows(rows, tile), activations.padded_depth(600)
    to = device.array(np.full(activations.num_values(rows, 600, tile), 0x1234, np.uint16))
    device.kernel("selftest_activation.cu", "selftest_activation", {"WIDTH": width})(
        (rows, 1, 1),
        64,
        [device.array(x), to, np.int32(height), np.int32(tile), np.int32(depth), np.int32(600)],
    )
    found = activations.unpack(device.numpy(to), rows, 768, tile, operands=device.operands)
    wanted = activations.unpack(
        activations.pack(x, tile, operands=device.operands), rows, 768, tile, operands=device.operands
    )
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(one, other)
    untouched = activations.unpack(device.numpy(to), height, 768, tile, operands=device.operands)[0][rows:]
    marker = device.operands.widen(np.array([0x1234], np.uint16)) * device.operands.unit
    np.testing.assert_array_equal(untouched, np.broadcast_to(marker, untouched.shape))
