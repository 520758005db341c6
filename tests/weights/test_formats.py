"""Decoding is bit-exact against the ``gguf`` package and against scalar decoders (B117, B118)."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from luce.weights import formats
from tests.weights.blocks import random_blocks
from tests.weights.scalar_decoders import SCALAR_DECODERS

BLOCKED = sorted(SCALAR_DECODERS)


def reference(name: str, blocks: np.ndarray) -> np.ndarray:
    return gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[name]).reshape(-1)


def bits(values: np.ndarray) -> bytes:
    return np.asarray(values, dtype=np.float32).tobytes()


@pytest.mark.parametrize("name", BLOCKED)
def test_1000_random_blocks_equal_the_reference(name: str) -> None:
    blocks = random_blocks(name, 1000, np.random.default_rng(1))
    decoded = formats.decode(name, blocks.reshape(-1), (1000, formats.block_size(name)))
    assert decoded.dtype == np.float32 and decoded.flags.c_contiguous and decoded.flags.owndata
    assert bits(decoded) == bits(reference(name, blocks))
    assert np.isfinite(decoded).all()
    assert (np.count_nonzero(decoded, axis=1) > formats.block_size(name) // 2).all()


@pytest.mark.parametrize("name", BLOCKED)
def test_blocks_equal_a_scalar_decoder(name: str) -> None:
    blocks = random_blocks(name, 50, np.random.default_rng(2))
    decoded = formats.decode(name, blocks.reshape(-1), (50, formats.block_size(name)))
    for block, row in zip(blocks, decoded, strict=True):
        assert bits(np.array(SCALAR_DECODERS[name](block.tobytes()))) == bits(row)


@pytest.mark.parametrize("name", BLOCKED)
@given(
    rows=st.integers(1, 9), columns=st.integers(1, 3), seed=st.integers(0, 2**32 - 1), shift=st.integers(0, 7)
)
def test_rows_of_several_blocks_at_any_alignment(
    name: str, rows: int, columns: int, seed: int, shift: int
) -> None:
    rng = np.random.default_rng(seed)
    blocks = random_blocks(name, rows * columns, rng)
    raw = np.concatenate([np.zeros(shift, np.uint8), blocks.reshape(-1)])[shift:]
    shape = (rows, columns * formats.block_size(name))
    assert formats.num_bytes(name, shape) == raw.size
    assert bits(formats.decode(name, raw, shape)) == bits(reference(name, blocks))


@pytest.mark.parametrize("name", ["Q8_0", "Q6_K"])
def test_more_values_than_one_decoding_chunk(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "_CHUNK_VALUES", 3 * formats.block_size(name))
    blocks = random_blocks(name, 10, np.random.default_rng(3))
    decoded = formats.decode(name, blocks.reshape(-1), (10, formats.block_size(name)))
    assert bits(decoded) == bits(reference(name, blocks))


@pytest.mark.parametrize("shift", [0, 1, 3])
def test_plain_floats_cover_every_16_bit_pattern(shift: int) -> None:
    patterns = np.arange(65536, dtype="<u2")
    raw = np.frombuffer(b"\0" * shift + patterns.tobytes(), np.uint8)[shift:]
    assert bits(formats.decode("F16", raw, (256, 256))) == bits(patterns.view("<f2").astype(np.float32))
    bf16 = formats.decode("BF16", raw, (65536,))
    assert (bf16.view(np.uint32) == patterns.astype(np.uint32) << 16).all()


def test_f32_keeps_every_bit() -> None:
    raw = np.random.default_rng(4).integers(0, 256, 4000, dtype=np.uint8)
    assert formats.decode("F32", raw, (10, 100)).tobytes() == raw.tobytes()


def test_sizes_are_the_package_s() -> None:
    for kind, (values, size) in gguf.GGML_QUANT_SIZES.items():
        assert formats.block_size(kind.name) == values
        assert formats.num_bytes(kind.name, (7, 3 * values)) == 21 * size


def test_a_row_of_partial_blocks_is_refused() -> None:
    with pytest.raises(ValueError, match="not whole blocks of 256"):
        formats.num_bytes("Q4_K", (2, 128))


def test_unsupported_formats_are_refused_by_name() -> None:
    assert formats.is_known("Q2_K") and "Q2_K" not in formats.LOADABLE
    with pytest.raises(ValueError, match="Q2_K"):
        formats.decode("Q2_K", np.zeros(84, np.uint8), (256,))
