"""What slots and KV blocks are made of on the device, by ``kernels/deltanet.h`` and ``kernels/attention.h``."""

from __future__ import annotations

import math
from collections.abc import Iterator

import attrs
import numpy as np
import numpy.typing as npt

from luce.engines.qwen35.config import TextConfig
from luce.engines.qwen35.device.descriptors import BLOCK_ROWS, CHUNK_ROWS, CONV_ROWS, RING_ROWS
from luce.engines.qwen35.memory_parts import ArraySpec

__all__ = [
    "CONV_TAPS",
    "StatePart",
    "block_rows",
    "bytes_per_snapshot",
    "kv_arrays",
    "rows_block",
    "state_arrays",
    "state_parts",
]

CONV_TAPS = 3
"""Rows before convolution that a next row reads."""
CORE = 8
"""Rows and values of a core matrix, of which the tiles of keys and values are made."""

Bits = npt.NDArray[np.uint16]


@attrs.frozen
class StatePart:
    """One array of a DeltaNet layer's state, of one slot."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    axis: int | None
    """Along which rows of positions stand; None: S, which has none."""

    @property
    def row_bytes(self) -> int:
        """Bytes of one row of a ring or window."""
        assert self.axis is not None
        return self.nbytes // self.shape[self.axis]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


def state_parts(config: TextConfig) -> tuple[StatePart, ...]:
    """Of one DeltaNet layer: S in fragment order, the rings of keys (bfloat16 bits), corrections and log decays
    (integers of 2^-40), and the rows before convolution."""
    hk, hv, dk, dv = config.key_heads, config.value_heads, config.key_dim, config.value_dim
    return (
        StatePart("s", (hv, dk * dv), "float32", None),
        StatePart("k", (hk, RING_ROWS, dk), "uint16", 1),
        StatePart("u", (hv, RING_ROWS, dv), "float32", 1),
        StatePart("g", (hv, RING_ROWS), "int64", 1),
        StatePart("conv", (CONV_ROWS, config.conv_channels), "float32", 0),
    )


def state_arrays(config: TextConfig, slots: int) -> Iterator[ArraySpec]:
    """DeltaNet state of all slots, [layers, slots, …]."""
    lead = (config.num_layers - sum(config.full_attention), slots)
    for part in state_parts(config):
        yield ArraySpec("recurrent state", part.name, (*lead, *part.shape), part.dtype)


def bytes_per_snapshot(config: TextConfig) -> int:
    """S, the ring rows of one chunk and 3 convolution rows of every layer (design §6)."""
    total = 0
    for part in state_parts(config):
        if part.axis is None:
            total += part.nbytes
        else:
            total += part.row_bytes * (CONV_TAPS if part.name == "conv" else CHUNK_ROWS)
    return total * (config.num_layers - sum(config.full_attention))


def kv_arrays(config: TextConfig, blocks: int) -> Iterator[ArraySpec]:
    """Keys and values, bfloat16 bits [attention layers, blocks, Hkv, tile of 64 · D]."""
    tile = BLOCK_ROWS * config.head_dim
    shape = (sum(config.full_attention), blocks, config.kv_heads, tile)
    yield ArraySpec("KV blocks", "keys", shape, "uint16")
    yield ArraySpec("KV blocks", "values", shape, "uint16")


def block_rows(tiles: Bits, dim: int, *, values: bool) -> Bits:
    """A block's tiles [Hkv, 64 · D] as rows [64, Hkv, D]."""
    heads = len(tiles)
    cores = tiles.reshape(heads, BLOCK_ROWS // CORE, dim // CORE, CORE, CORE)
    if values:  # [dim][key] within a core matrix
        cores = cores.swapaxes(-1, -2)
    rows = cores.transpose(1, 3, 0, 2, 4)
    return np.ascontiguousarray(rows.reshape(BLOCK_ROWS, heads, dim))


def rows_block(rows: Bits, *, values: bool) -> Bits:
    """The reverse of :func:`block_rows`."""
    _, heads, dim = rows.shape
    cores = rows.reshape(BLOCK_ROWS // CORE, CORE, heads, dim // CORE, CORE).transpose(2, 0, 3, 1, 4)
    if values:
        cores = cores.swapaxes(-1, -2)
    return np.ascontiguousarray(cores.reshape(heads, BLOCK_ROWS * dim))
