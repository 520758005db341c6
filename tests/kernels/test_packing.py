"""Records that a device makes of a file's rows are those that numpy makes."""

from __future__ import annotations

import numpy as np
import pytest

from luce.compute import device_packing, packing
from luce.compute.device import Device
from luce.weights import formats
from tests.kernels.weights import random_rows

NAMES = ("BF16", "F16", "F32", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS")


def packed(device: Device, name: str, shape: tuple[int, int, int], *args: object) -> np.ndarray:
    to = device.empty(shape, np.uint8)
    device_packing.pack_into(device, to, name, *args)
    return device.numpy(to)


def depth_of(name: str) -> int:
    """Two records and a part of one, where the format has such rows."""
    return 512 + formats.block_size(name) % 256


@pytest.mark.parametrize("name", NAMES)
def test_records_are_numpys(device: Device, name: str) -> None:
    for rows in (16, 37):
        raw, depth = random_rows(name, rows, depth_of(name), rows), depth_of(name)
        right = packing.pack(name, raw, depth, operands=device.operands).records
        assert len(np.unique(right)) > 100
        np.testing.assert_array_equal(packed(device, name, right.shape, raw, depth), right)


@pytest.mark.parametrize("name", NAMES)
def test_gate_and_up(device: Device, name: str) -> None:
    depth = depth_of(name)
    gate, up = (random_rows(name, 24, depth, seed) for seed in (1, 2))
    right = packing.pack(name, packing.interleave(gate, up), depth, operands=device.operands).records
    np.testing.assert_array_equal(packed(device, name, right.shape, gate, depth, up), right)


@pytest.mark.parametrize("name", NAMES)
def test_what_the_rows_lack_is_zero_and_what_is_too_much_is_left_out(device: Device, name: str) -> None:
    """Values, since scales of nothing have codes of their own."""
    depth, rows = depth_of(name), 24
    raw = random_rows(name, rows, depth, 3)
    right = packing.pack(name, raw, depth, operands=device.operands).records
    blocks, records, size = right.shape
    more = packed(device, name, (blocks + 2, records + 1, size), raw, depth)
    np.testing.assert_array_equal(more[:blocks, :records], right)
    wide = np.zeros((16 * (blocks + 2), formats.num_bytes("F32", (1, 256 * (records + 1)))), np.uint8)
    nothing = packing.pack("F32", wide, 256 * (records + 1), operands=device.operands).records
    if size == nothing.shape[2]:
        np.testing.assert_array_equal(more[blocks:], nothing[blocks:])
    else:
        empty = packing.pack(name, raw[:0].copy().reshape(0, raw.shape[1]), depth, operands=device.operands)
        assert empty.records.size == 0
        alone = packed(device, name, (1, 1, size), np.zeros((0, raw.shape[1]), np.uint8), depth)
        assert (more[blocks:] == alone).all() and (more[:blocks, records:] == alone).all()
        zeros = packing.pack(
            name, np.zeros((16, raw.shape[1]), np.uint8), depth, operands=device.operands
        ).records
        assert (_scales(name, alone) == 0).all() and zeros.shape[2] == size
    np.testing.assert_array_equal(packed(device, name, (1, records, size), raw, depth), right[:1])


def _scales(name: str, records: np.ndarray) -> np.ndarray:
    """The f16 scales, by which all weights of a record are multiplied: they stand last."""
    stored = packing.stored_format(name)
    count = {"Q8_0": 256, "Q4_0": 256, "Q4_K": 64, "Q5_K": 64, "Q6_K": 32, "IQ4_XS": 32}[stored]
    return records[..., -count:]


def test_in_pieces(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_packing, "PIECE_BYTES", 5000)
    for name in ("Q4_K", "BF16"):
        gate, up = (random_rows(name, 72, 512, seed) for seed in (4, 5))
        right = packing.pack(name, packing.interleave(gate, up), 512, operands=device.operands).records
        np.testing.assert_array_equal(packed(device, name, right.shape, gate, 512, up), right)
