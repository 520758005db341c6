"""Weights of a file's format taken apart: the whole numbers, scales and minima that its blocks hold, and their values.

The values are those of the weight-GEMM tree (kernels/README.md): each weight one operand, rounded once, times a
float32 scale per 256 of a row in the K formats and IQ4_XS.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt
from gguf import quants

from luce.compute.operands import Operands
from luce.weights import formats

__all__ = ["FLAT", "FORMATS", "SCALED", "Fields", "read_blocks", "tree_values"]

U8 = npt.NDArray[np.uint8]
F32 = npt.NDArray[np.float32]

FLAT = ("BF16", "Q8_0", "Q4_0")
"""One scale or none per 32 weights, taken into the operand. BF16 stands for operands, whatever they are."""
SCALED = ("Q4_K", "Q5_K", "Q6_K", "IQ4_XS")
"""An operand is the sub-block's whole scale times the whole number; the super-block's scale stays outside."""
FORMATS = (*FLAT, *SCALED)
"""Formats in which a device holds matrices. F16 and F32 become operands (BF16), as other block formats do."""

IQ4_VALUES = np.array(quants.IQ4_NL.kvalues, np.int8)


@attrs.frozen(eq=False)
class Fields:
    """N rows of K weights (a multiple of 32; of 256 for the scaled formats). What a format lacks is None.

    ``codes`` [N, K]: bits of operands (BF16), else the number as the file stores it, uint8: Q8_0 plus 128, Q4_0 0 … 15
    for -8 … 7, Q6_K 0 … 63 for -32 … 31, IQ4_XS the index into its table.
    ``d``, ``dmin``: f16 bits [N, K / 32] (Q8_0, Q4_0) or [N, K / 256].
    ``scales``, ``minima``: uint8 [N, K / 32] (Q6_K: [N, K / 16], plus 128; IQ4_XS: plus 32).
    """

    format: str
    codes: npt.NDArray[Any]
    d: npt.NDArray[np.uint16] | None = None
    dmin: npt.NDArray[np.uint16] | None = None
    scales: U8 | None = None
    minima: U8 | None = None


def read_blocks(name: str, raw: U8, depth: int, operands: Operands) -> Fields:
    """Take rows apart.

    Args:
        name: the file's format, any of luce.weights.formats.LOADABLE.
        raw: [N, bytes of a row] as they are in the file.
        depth: K.
    """
    rows = len(raw)
    if name == "BF16" and operands is Operands.BF16:
        return Fields("BF16", raw.reshape(rows, -1).view(np.uint16).reshape(rows, depth))
    if name == "BF16" or name not in FORMATS:
        values = formats.decode(name, raw.reshape(-1), (rows, depth))
        return Fields("BF16", operands.hold_weights(values))
    size = formats.num_bytes(name, (formats.block_size(name),))
    blocks = raw.reshape(rows, -1, size)
    codes, d = _READERS[name](blocks), blocks[:, :, _D[name] : _D[name] + 2]
    scales, minima = _scales(name, blocks)
    return Fields(
        name,
        codes.reshape(rows, depth),
        np.ascontiguousarray(d).view(np.uint16)[:, :, 0],
        np.ascontiguousarray(blocks[:, :, 2:4]).view(np.uint16)[:, :, 0]
        if name in ("Q4_K", "Q5_K")
        else None,
        scales,
        minima,
    )


_D = {"Q8_0": 0, "Q4_0": 0, "Q4_K": 0, "Q5_K": 0, "Q6_K": 208, "IQ4_XS": 0}


def _nibbles(packed: U8, run: int) -> U8:
    """[N, B, bytes]: runs of ``run`` bytes, whose low nibbles come before the high ones."""
    parts = packed.reshape(*packed.shape[:2], -1, 1, run)
    return np.concatenate([parts & np.uint8(15), parts >> np.uint8(4)], axis=3)


def _q5_k(blocks: U8) -> U8:
    low = _nibbles(blocks[:, :, 48:], 32).reshape(*blocks.shape[:2], 8, 32)
    shifts = np.arange(8, dtype=np.uint8)[:, None]
    high = (blocks[:, :, None, 16:48] >> shifts) & np.uint8(1)
    return low | (high << np.uint8(4))


def _q6_k(blocks: U8) -> U8:
    low = _nibbles(blocks[:, :, :128], 64).reshape(*blocks.shape[:2], 2, 4, 32)
    shifts = np.array([0, 2, 4, 6], np.uint8)[:, None]
    high = (blocks[:, :, 128:192].reshape(*blocks.shape[:2], 2, 1, 32) >> shifts) & np.uint8(3)
    return low | (high << np.uint8(4))


_READERS: dict[str, Callable[[U8], U8]] = {
    "Q8_0": lambda blocks: blocks[:, :, 2:] ^ np.uint8(128),
    "Q4_0": lambda blocks: _nibbles(blocks[:, :, 2:], 16),
    "Q4_K": lambda blocks: _nibbles(blocks[:, :, 16:], 32),
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "IQ4_XS": lambda blocks: _nibbles(blocks[:, :, 8:], 16),
}


def _scales(name: str, blocks: U8) -> tuple[U8 | None, U8 | None]:
    rows = len(blocks)
    if name in ("Q4_K", "Q5_K"):
        packed = np.ascontiguousarray(blocks[:, :, 4:16]).reshape(-1, 12)
        scales, minima = quants.Q4_K.get_scale_min(packed)
        return scales.reshape(rows, -1), minima.reshape(rows, -1)
    if name == "Q6_K":
        return (blocks[:, :, 192:208] ^ np.uint8(128)).reshape(rows, -1), None
    if name == "IQ4_XS":
        low = _nibbles(blocks[:, :, 4:8], 1).reshape(*blocks.shape[:2], 8)
        top = np.ascontiguousarray(blocks[:, :, 2:4]).view(np.uint16)
        high = (top >> np.arange(0, 16, 2, dtype=np.uint16)) & np.uint16(3)
        return (low | (high.astype(np.uint8) << np.uint8(4))).reshape(rows, -1), None
    return None, None


def tree_values(fields: Fields, operands: Operands) -> tuple[F32, F32, F32]:
    """The numbers that enter the tree.

    Returns:
        w [N, K], operands in float32; d [N, K / 256] that multiplies each 256 of them (ones for flat formats); the
        minima [N, K / 32] that multiply the sums of 32 activations, operands (zeros where there are none).
    """
    rows, depth = fields.codes.shape
    ones, zeros = np.ones((rows, -(-depth // 256)), np.float32), np.zeros((rows, depth // 32), np.float32)
    if fields.format == "BF16":
        return operands.widen(fields.codes) / operands.unit, ones, zeros
    assert fields.d is not None
    d = fields.d.view(np.float16).astype(np.float32)
    if fields.format in FLAT:
        middle = 128 if fields.format == "Q8_0" else 8
        w = np.repeat(d, 32, axis=1) * (fields.codes.astype(np.float32) - np.float32(middle))
        return operands.widen(operands.hold_weights(w)) / operands.unit, ones, zeros
    assert fields.scales is not None
    scales = fields.scales.astype(np.float32)
    codes = fields.codes.astype(np.float32)
    if fields.format == "Q6_K":
        scales, codes = scales - 128, codes - 32
    elif fields.format == "IQ4_XS":
        scales, codes = scales - 32, IQ4_VALUES[fields.codes].astype(np.float32)
    w = np.repeat(scales, depth // scales.shape[1], axis=1) * codes
    if fields.minima is not None and fields.dmin is not None:
        dmin = fields.dmin.view(np.float16).astype(np.float32)
        least = -np.repeat(dmin, 8, axis=1) * fields.minima
        zeros = operands.widen(operands.hold_weights(least)) / operands.unit
    return operands.widen(operands.round(w)), d, zeros
