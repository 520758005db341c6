"""Packed weights come out of kernels/records.h as the tree says: bit for bit those of numpy, near those of the file."""

from __future__ import annotations

import numpy as np
import pytest

from luce.compute import packing
from luce.compute.device import Device
from luce.compute.operands import Operands
from luce.compute.weight_fields import FORMATS, read_blocks, tree_values
from luce.weights import formats
from tests.kernels.weights import random_rows


@pytest.mark.parametrize("operands", list(Operands))
@pytest.mark.parametrize("name", [*FORMATS, "F16", "F32"])
def test_tree_values_are_near_the_files(name: str, operands: Operands) -> None:
    raw = random_rows(name, 8, 1024)
    w, d, minima = tree_values(read_blocks(name, raw, 1024, operands), operands)
    values = np.repeat(d, 256, axis=1).astype(np.float64) * w + np.repeat(minima, 32, axis=1)
    wanted = formats.decode(name, raw.reshape(-1), (8, 1024))
    assert np.max(np.abs(values - wanted)) <= (2**-10.5 if operands is Operands.F16 else 2**-7.5) * np.max(
        np.abs(wanted)
    )


def in_kernel(device: Device, packed: packing.PackedWeights) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    records = packed.records.shape[1]
    parts = []
    for block in packed.records:
        w, d, minima = (device.zeros((16, records * of), np.float32) for of in (packing.RECORD_DEPTH, 1, 8))
        kernel = device.kernel(
            "selftest_records.cu", "selftest_records", {"FORMAT": f"FORMAT_{packed.format}"}
        )
        kernel((records, 1, 1), 32, [device.array(block), w, d, minima, np.int32(records)])
        parts.append([device.numpy(one) for one in (w, d, minima)])
    w, d, minima = (np.concatenate(part) for part in zip(*parts, strict=True))
    return w, d, minima


@pytest.mark.parametrize("name", [*FORMATS, "F16"])
def test_records_hold_the_trees_weights(device: Device, name: str) -> None:
    rows, depth = 37, 768
    raw = random_rows(name, rows, depth)
    packed = packing.pack(name, raw, depth, operands=device.operands)
    fields = read_blocks(name, raw, depth, operands=device.operands)
    w, d, minima = in_kernel(device, packed)
    wanted = tree_values(fields, operands=device.operands)
    np.testing.assert_array_equal(w[:rows], wanted[0])
    np.testing.assert_array_equal(minima[:rows], wanted[2])
    if packed.format in ("Q4_K", "Q5_K", "Q6_K", "IQ4_XS"):
        np.testing.assert_array_equal(d[:rows], wanted[1])
    assert not w[rows:].any() and not minima[rows:].any() and not d[rows:].any()


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "BF16"])
def test_every_code_and_scale(device: Device, name: str) -> None:
    """All codes beside all scales: the whole range of what a file can say."""
    raw = random_rows(name, 16, 16384, seed=1)
    fields = read_blocks(name, raw, 16384, operands=device.operands)
    assert len(np.unique(fields.codes)) == {"Q8_0": 256, "Q6_K": 64, "Q5_K": 32}.get(name, 16)
    if fields.scales is not None:
        assert len(np.unique(fields.scales)) == (256 if name == "Q6_K" else 64)
    w, _, minima = in_kernel(device, packing.pack(name, raw, 16384, operands=device.operands))
    wanted = tree_values(fields, operands=device.operands)
    np.testing.assert_array_equal(w, wanted[0])
    np.testing.assert_array_equal(minima, wanted[2])


@pytest.mark.parametrize("name", ["BF16", "Q8_0", "Q4_0"])
@pytest.mark.parametrize("depth", [32, 288, 512])
def test_short_rows_are_padded_with_zeros(device: Device, name: str, depth: int) -> None:
    raw = random_rows(name, 5, depth)
    w, _, _ = in_kernel(device, packing.pack(name, raw, depth, operands=device.operands))
    np.testing.assert_array_equal(
        w[:5, :depth],
        tree_values(read_blocks(name, raw, depth, operands=device.operands), operands=device.operands)[0],
    )
    assert not w[5:].any() and not w[:, depth:].any()


def test_pieces_are_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = random_rows("Q4_K", 100, 512)
    whole = packing.pack("Q4_K", raw, 512, Operands.F16)
    monkeypatch.setattr(packing, "_CHUNK_WEIGHTS", 20_000)
    assert len(list(packing.pack_rows("Q4_K", raw, 512, Operands.F16))) == 4
    np.testing.assert_array_equal(packing.pack("Q4_K", raw, 512, Operands.F16).records, whole.records)


def test_gate_and_up_are_interleaved() -> None:
    gate, up = (np.arange(48, dtype=np.uint8).reshape(24, 2) + first for first in (0, 100))
    mixed = packing.interleave(gate, up)
    np.testing.assert_array_equal(mixed.reshape(3, 2, 8, 2)[:, 0].reshape(24, 2), gate)
    np.testing.assert_array_equal(mixed.reshape(3, 2, 8, 2)[:, 1].reshape(24, 2), up)
