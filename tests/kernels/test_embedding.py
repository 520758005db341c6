"""Embedding rows against the decoder of model files, bit for bit."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from luce.compute import packing
from luce.compute.device import Device
from luce.engines.qwen35.device.descriptors import PASS, ROW, SOURCE_HISTORY, image_source
from luce.weights import formats

FORMATS = ("F32", "BF16", "F16", "Q8_0", "Q4_0", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS")
VOCAB, HIDDEN = 50, 512


def table_of(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Bytes [VOCAB, …] of random blocks and the values that they stand for."""
    rng = np.random.default_rng(len(name) + ord(name[-1]))
    size = formats.num_bytes(name, (VOCAB, HIDDEN))
    raw = rng.integers(0, 256, size, dtype=np.uint8).reshape(VOCAB, -1)
    if name in ("F32", "BF16", "F16"):
        values = rng.standard_normal((VOCAB, HIDDEN)).astype(np.float32)
        if name == "F32":
            raw = values.view(np.uint8)
        elif name == "F16":
            raw = values.astype(np.float16).view(np.uint8)
        else:
            raw = np.ascontiguousarray(values.view(np.uint16)[:, 1::2]).view(np.uint8)
    else:  # scales that are numbers
        block = raw.reshape(-1, gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]][1])
        scale = rng.uniform(-0.01, 0.01, (len(block), 2)).astype(np.float16).view(np.uint8)
        at = slice(208, 210) if name == "Q6_K" else slice(0, 4 if name in ("Q4_K", "Q5_K") else 2)
        block[:, at] = scale[:, : at.stop - at.start]
    return raw, formats.decode(name, raw.reshape(-1), (VOCAB, HIDDEN))


def embed(
    device: Device,
    name: str,
    raw: np.ndarray,
    rows: np.ndarray,
    images: np.ndarray,
    history: np.ndarray,
    pad: int = 0,
    kernel: str = "embedding",
) -> tuple[np.ndarray, np.ndarray]:
    header = np.zeros(1, PASS)
    header["rows"] = len(rows)
    more = np.full((len(rows) + pad) * ROW.itemsize, 0x7F, np.uint8)  # rows past the count hold anything
    more[: rows.nbytes] = rows.view(np.uint8)
    x = device.array(np.full((len(rows) + pad, HIDDEN), -7.0, np.float32))
    held = device.array(history)
    device.kernel("embedding.cu", kernel, {"FORMAT": f"FORMAT_{name}"})(
        (len(rows) + pad, 1, 1),
        64,
        [
            *(device.array(part.view(np.uint8)) for part in (header, more)),
            *(device.array(raw), np.int32(VOCAB), np.int32(HIDDEN)),
            *(device.array(images), held, np.int32(history.shape[1]), x),
        ],
    )
    return device.numpy(x), device.numpy(held)


def rows_of(*rows: tuple[int, int, int]) -> np.ndarray:
    made = np.zeros(len(rows), ROW)
    made["slot"], made["position"], made["source"] = np.array(rows).T
    return made


@pytest.mark.parametrize("name", FORMATS)
def test_rows_have_the_bits_of_the_file(device: Device, name: str) -> None:
    raw, values = table_of(name)
    history = np.full((3, 8), -99, np.int32)
    history[1, 5] = 17
    images = np.random.default_rng(0).standard_normal((4, HIDDEN)).astype(np.float32)
    rows = rows_of((0, 0, 49), (1, 5, SOURCE_HISTORY), (2, 3, 0), (0, 1, image_source(2)), (0, 2, 8))
    x, after = embed(device, name, raw, rows, images, history, pad=3)
    np.testing.assert_array_equal(x[:5], np.stack([values[49], values[17], values[0], images[2], values[8]]))
    assert (x[5:] == -7.0).all()
    wanted = history.copy()
    wanted[0, 0], wanted[2, 3], wanted[0, 2] = 49, 0, 8
    np.testing.assert_array_equal(after, wanted)


@pytest.mark.parametrize("name", list(packing.RECORD_BYTES))
def test_rows_of_packed_matrices_have_them_too(device: Device, name: str) -> None:
    raw, values = table_of(name)
    packed = packing.pack(name, raw, HIDDEN, operands=device.operands)
    history = np.zeros((1, 64), np.int32)
    ids = [*range(0, VOCAB, 3), 16, 31, VOCAB - 1]
    rows = rows_of(*((0, place, token) for place, token in enumerate(ids)), (0, 63, image_source(1)))
    images = np.random.default_rng(0).standard_normal((2, HIDDEN)).astype(np.float32)
    x, _ = embed(device, name, packed.records, rows, images, history, kernel="embedding_packed")
    np.testing.assert_array_equal(x[:-1], values[ids])
    np.testing.assert_array_equal(x[-1], images[1])


def test_an_id_outside_the_table_fails_its_row_alone(device: Device) -> None:
    raw, values = table_of("BF16")
    history = np.full((2, 8), VOCAB, np.int32)
    history[1] = -5
    rows = rows_of((0, 0, SOURCE_HISTORY), (0, 1, 3), (1, 0, SOURCE_HISTORY))
    x, _ = embed(device, "BF16", raw, rows, np.zeros((1, HIDDEN), np.float32), history)
    assert np.isnan(x[[0, 2]]).all()
    np.testing.assert_array_equal(x[1], values[3])
