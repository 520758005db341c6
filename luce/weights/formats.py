"""Number formats of tensors in model files: sizes, and decoding to float32.

Block formats (``Q8_0``, ``Q4_K``, …) are decoded by the ``gguf`` package, the reference; plain floats by
shifts and casts without temporaries. Byte counts come from :data:`gguf.GGML_QUANT_SIZES`.
"""

from __future__ import annotations

import math

import gguf
import numpy as np
import numpy.typing as npt
from gguf import quants

__all__ = ["LOADABLE", "block_size", "decode", "is_known", "num_bytes"]

U8 = npt.NDArray[np.uint8]
F32 = npt.NDArray[np.float32]

_BLOCKED = ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS")
LOADABLE = ("F32", "F16", "BF16", *_BLOCKED)
"""Formats that :func:`decode` accepts. Others have a size, so that a file can be listed."""

_SAFETENSORS_ITEM_BYTES = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "F8_E8M0": 1,
    "I16": 2,
    "U16": 2,
    "F16": 2,
    "BF16": 2,
    "I32": 4,
    "U32": 4,
    "F32": 4,
    "I64": 8,
    "U64": 8,
    "F64": 8,
    "C64": 8,
}
_SIZES = {kind.name: size for kind, size in gguf.GGML_QUANT_SIZES.items()} | {
    name: (1, size) for name, size in _SAFETENSORS_ITEM_BYTES.items()
}
_CHUNK_VALUES = 1 << 17
"""Values decoded at once: the temporaries of the reference decoder stay in the cache and are a few MB."""


def is_known(name: str) -> bool:
    """Does the format have a size here (GGML type names and safetensors dtypes)?"""
    return name in _SIZES


def block_size(name: str) -> int:
    """Values that are stored together; rows are whole numbers of blocks."""
    return _SIZES[name][0]


def num_bytes(name: str, shape: tuple[int, ...]) -> int:
    """Bytes that a tensor takes in a file.

    Raises:
        ValueError: a row is not a whole number of blocks.
    """
    values, size = _SIZES[name]
    row = shape[-1] if shape else 1
    if row % values:
        raise ValueError(f"rows of {row} values are not whole blocks of {values} ({name})")
    return math.prod(shape) // values * size


def decode(name: str, raw: U8, shape: tuple[int, ...]) -> F32:
    """Decode file bytes to a new C-contiguous float32 array.

    Args:
        name: one of :data:`LOADABLE`.
        raw: [num_bytes(name, shape)] bytes, any alignment; little-endian.
        shape: numpy order, last axis contiguous in the file.
    """
    out = np.empty(shape, dtype=np.float32)
    flat = out.reshape(-1)
    if name == "F32":
        flat[...] = raw.view("<f4")
    elif name == "F16":
        flat[...] = raw.view("<f2")
    elif name == "BF16":
        bits = flat.view(np.uint32)
        bits[...] = raw.view("<u2")
        bits <<= 16
    elif name in _BLOCKED:
        _decode_blocks(name, raw, flat)
    else:
        raise ValueError(f"format {name} cannot be decoded")
    return out


def _decode_blocks(name: str, raw: U8, flat: F32) -> None:
    values, size = _SIZES[name]
    blocks = raw.reshape(-1, size)
    kind = gguf.GGMLQuantizationType[name]
    step = max(1, _CHUNK_VALUES // values)
    for first in range(0, len(blocks), step):
        # one long row: the package works through rows in groups of 16
        part = np.ascontiguousarray(blocks[first : first + step]).reshape(1, -1)
        # infinities in hostile scales are data, not faults here
        with np.errstate(over="ignore", invalid="ignore"):
            decoded = quants.dequantize(part, kind)
        flat[first * values : first * values + decoded.size] = decoded.reshape(-1)
