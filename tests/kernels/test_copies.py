"""Copies, fills and the check of rows."""

from __future__ import annotations

import numpy as np
import pytest

from luce.compute.device import Device
from luce.engines.qwen35.device.descriptors import FAULT_ROWS, LANE, PASS, PIECE


def pieces_of(device: Device, *pieces: tuple[int, int, int]) -> object:
    return device.array(np.array(list(pieces), PIECE).view(np.uint8))


def test_pieces_are_copied_and_nothing_else(device: Device) -> None:
    rng = np.random.default_rng(0)
    source, target = (rng.integers(0, 256, 6000, dtype=np.uint8) for _ in range(2))
    to = device.array(target)
    pieces = pieces_of(device, (16, 4096, 1616), (3200, 0, 16), (4000, 512, 0), (5008, 96, 992), (0, 0, 16))
    count = device.array(np.array([4], np.int32))
    device.kernel("copies.cu", "copy_pieces")((3, 5, 1), 32, [pieces, count, to, device.array(source)])
    wanted = target.copy()
    wanted[16:1632], wanted[3200:3216], wanted[5008:6000] = source[4096:5712], source[:16], source[96:1088]
    np.testing.assert_array_equal(device.numpy(to), wanted)


def test_pieces_are_filled_and_nothing_else(device: Device) -> None:
    target = np.arange(1000, dtype=np.uint32)
    to = device.array(target)
    pieces = pieces_of(device, (16, 0, 80), (400, 0, 1600), (0, 0, 16))
    count = device.array(np.array([2], np.int32))
    device.kernel("copies.cu", "fill_pieces")((2, 3, 1), 64, [pieces, count, to, np.uint32(0xFFFFFFFF)])
    wanted = target.copy()
    wanted[4:24] = wanted[100:500] = 0xFFFFFFFF
    found = device.numpy(to)
    np.testing.assert_array_equal(found, wanted)
    assert np.isnan(found[4:24].view(np.float32)).all()


@pytest.mark.parametrize("beside", [0, 1])
def test_the_last_row_of_every_lane_is_checked(device: Device, beside: int) -> None:
    x = np.random.default_rng(1).standard_normal((9, 200)).astype(np.float32)
    x[0, 3] = np.nan  # not a last row
    x[3, 199], x[4, 0], x[8, 100] = np.nan, -np.inf, np.inf
    lanes = np.zeros(7, LANE)
    lanes["row"][:5], lanes["count"][:5] = [0, 2, 4, 5, 7], [2, 2, 1, 2, 2]
    header = np.zeros(1, PASS)
    header["lanes"] = 5
    faults = device.array(np.full(7, -1, np.int32))
    device.kernel("copies.cu", "check_lanes")(
        (7, 1, 1),
        64,
        [
            *(device.array(part.view(np.uint8)) for part in (header, lanes)),
            device.array(x),
            np.int32(200),
            faults,
            np.int32(beside),
        ],
        shared=16,
    )
    assert device.numpy(faults).tolist() == [0, FAULT_ROWS, FAULT_ROWS, 0, FAULT_ROWS, -1, -1]
