"""Weight matrices as a device holds them: row-blocks of 16 rows, each a run of records of 256 K in ascending order.

A record is what a warp multiplies: the 16 x 256 weights of a file's format in the order of mma.m16n8k16's A operand,
then their scales (kernels/records.h says where each stands). N is padded to 16 and K to 256 with weights that are zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt

from luce.compute.operands import Operands
from luce.compute.weight_fields import FORMATS, Fields, read_blocks

__all__ = [
    "RECORD_BYTES",
    "RECORD_DEPTH",
    "ROW_BLOCK",
    "PackedWeights",
    "interleave",
    "pack",
    "pack_rows",
    "packed_shape",
    "stored_format",
]

U8 = npt.NDArray[np.uint8]

ROW_BLOCK = 16
RECORD_DEPTH = 256
RECORD_BYTES = {
    "BF16": 8192,
    "Q8_0": 4352,
    "Q4_0": 2304,
    "Q4_K": 2368,
    "Q5_K": 2880,
    "Q6_K": 3360,
    "IQ4_XS": 2208,
}
_CHUNK_WEIGHTS = 1 << 21
"""Weights taken at once: temporaries of some 10 MB."""


@attrs.frozen(eq=False)
class PackedWeights:
    """A matrix [rows, depth] in records: uint8 [row-blocks, records of a row-block, bytes of a record]."""

    format: str
    rows: int
    depth: int
    records: U8


def stored_format(name: str) -> str:
    """The format of :data:`RECORD_BYTES` in which a device holds a matrix of a file's format.

    BF16 says operands, of either kind (:class:`luce.compute.operands.Operands`).
    """
    return name if name in FORMATS else "BF16"


def packed_shape(name: str, rows: int, depth: int) -> tuple[int, int, int]:
    """Shape of the records of a matrix of this file format, uint8."""
    return -(-rows // ROW_BLOCK), -(-depth // RECORD_DEPTH), RECORD_BYTES[stored_format(name)]


def interleave(gate: U8, up: U8) -> U8:
    """Rows of the gate and up matrices, each [N, bytes] with N a multiple of 8: 8 of the gate, the same 8 of up, …"""
    rows, size = gate.shape
    assert gate.shape == up.shape and rows % 8 == 0, "gate and up have one shape, of whole groups of 8 rows"
    return np.stack([gate.reshape(-1, 8, size), up.reshape(-1, 8, size)], axis=1).reshape(2 * rows, size)


def pack(name: str, raw: U8, depth: int, operands: Operands) -> PackedWeights:
    """Pack a whole matrix, [N, bytes of a row] of a file's format."""
    records = np.empty(packed_shape(name, len(raw), depth), np.uint8)
    for first, part in pack_rows(name, raw, depth, operands):
        records[first : first + len(part)] = part
    return PackedWeights(stored_format(name), len(raw), depth, records)


def pack_rows(name: str, raw: U8, depth: int, operands: Operands) -> Iterator[tuple[int, U8]]:
    """As :func:`pack`, in pieces: the first row-block of each and its records."""
    step = max(ROW_BLOCK, _CHUNK_WEIGHTS // max(depth, 1) // ROW_BLOCK * ROW_BLOCK)
    for first in range(0, len(raw), step):
        fields = _padded(read_blocks(name, raw[first : first + step], depth, operands))
        yield first // ROW_BLOCK, _WRITERS[fields.format](fields)


_NEUTRAL = {"Q8_0": 128, "Q4_0": 8, "Q6_K": 32}
"""The code of the weight zero; scales of padding are zero as well."""
_NEUTRAL_SCALE = {"Q6_K": 128, "IQ4_XS": 32}


def _padded(fields: Fields) -> Fields:
    rows, depth = fields.codes.shape
    more_rows, more_depth = -rows % ROW_BLOCK, -depth % RECORD_DEPTH
    if not more_rows and not more_depth:
        return fields

    def wider(values: Any, fill: int) -> Any:
        if values is None:
            return None
        group = depth // values.shape[1]
        widths = ((0, more_rows), (0, more_depth // group))
        return np.pad(values, widths, constant_values=fill)

    return attrs.evolve(
        fields,
        codes=wider(fields.codes, _NEUTRAL.get(fields.format, 0)),
        d=wider(fields.d, 0),
        dmin=wider(fields.dmin, 0),
        scales=wider(fields.scales, _NEUTRAL_SCALE.get(fields.format, 0)),
        minima=wider(fields.minima, 0),
    )


def _fragments(codes: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """[N, K] as [row-block, record, step 16, g 8, t 4, k half 2, row half 2, pair 2]: lane 4 g + t, register 2 k half +
    row half of step's A operand."""
    rows, depth = codes.shape
    cells = codes.reshape(rows // 16, 2, 8, depth // 256, 16, 2, 4, 2)
    return cells.transpose(0, 3, 4, 2, 6, 5, 1, 7)


def _bytes(array: npt.NDArray[Any]) -> U8:
    """[row-block, record, …] as [row-block, record, bytes]."""
    return np.ascontiguousarray(array).view(np.uint8).reshape(*array.shape[:2], -1)


def _of_records(values: npt.NDArray[Any] | None, per: int) -> npt.NDArray[Any]:
    """[N, K / group] as [row-block, record, g 8, ``per`` of a record, row half 2]."""
    assert values is not None
    rows = len(values)
    return values.reshape(rows // 16, 2, 8, -1, per).transpose(0, 3, 2, 4, 1)


def _join(*parts: npt.NDArray[Any]) -> U8:
    return np.concatenate([_bytes(part) for part in parts], axis=2)


def _write_bf16(fields: Fields) -> U8:
    return _bytes(_fragments(fields.codes))


def _write_q8_0(fields: Fields) -> U8:
    cells = _fragments(fields.codes)
    cells = cells.reshape(*cells.shape[:2], 8, 2, *cells.shape[3:])  # block 8, step 2
    return _join(cells.transpose(0, 1, 2, 4, 5, 3, 6, 7, 8), _of_records(fields.d, 8))


def _quarters(codes: U8) -> npt.NDArray[Any]:
    """[…, quarter 4, sub-block 2, step 2, g, t, k half, row half, pair]."""
    cells = _fragments(codes)
    return cells.reshape(*cells.shape[:2], 4, 2, 2, *cells.shape[3:])


def _nibble_words(codes: U8) -> npt.NDArray[Any]:
    """[…, quarter, g, t, step, k half, pair] uint16: nibble 2 row half + sub-block of each holds the code."""
    cells = _quarters(codes).astype(np.uint16)
    words = cells[:, :, :, 0, ..., 0, :] | cells[:, :, :, 1, ..., 0, :] << 4
    words |= cells[:, :, :, 0, ..., 1, :] << 8
    words |= cells[:, :, :, 1, ..., 1, :] << 12
    return words.transpose(0, 1, 2, 4, 5, 3, 6, 7)


def _write_k(fields: Fields) -> U8:
    """Q4_K and Q5_K."""
    parts = [_nibble_words(fields.codes & np.uint8(15))]
    if fields.format == "Q5_K":
        # [quarter, sub-block, step, g, t, k half, row half, pair]
        top = _quarters(fields.codes >> np.uint8(4)).astype(np.uint32)
        words = np.zeros((*top.shape[:3], 8, 4), np.uint32)
        for step, half, below, sub, pair in np.ndindex(2, 2, 2, 2, 2):
            at = 4 * (2 * step + half) + 2 * below + sub
            words |= top[:, :, :, sub, step, :, :, half, below, pair] << np.uint32((4 + at) % 16 + 16 * pair)
        parts.append(words.transpose(0, 1, 3, 4, 2))
    minima = _of_records(fields.minima, 8)  # [row-block, record, g, sub-block 8, row half]
    minima = minima.reshape(*minima.shape[:3], 4, 2, 2).transpose(0, 1, 2, 3, 5, 4)
    d = np.stack([_of_records(fields.d, 1), _of_records(fields.dmin, 1)], axis=3)
    return _join(*parts, _of_records(fields.scales, 8), minima, d)


def _write_q6_k(fields: Fields) -> U8:
    cells = _quarters(fields.codes)
    low = np.empty_like(cells)
    low[:, :, :, 0], low[:, :, :, 1] = cells[:, :, :, 0] & 15, cells[:, :, :, 1] >> 2
    rest = np.empty_like(cells)
    rest[:, :, :, 0], rest[:, :, :, 1] = cells[:, :, :, 0] >> 4, cells[:, :, :, 1] & 3
    wide = low.astype(np.uint16)
    words = wide[:, :, :, 0, ..., 0, :] | wide[:, :, :, 1, ..., 0, :] << 4
    words |= wide[:, :, :, 0, ..., 1, :] << 8
    words |= wide[:, :, :, 1, ..., 1, :] << 12
    tops = np.zeros((*words.shape[:6], 2), np.uint16)  # [quarter, step, g, t, pair]
    for half, below in np.ndindex(2, 2):
        group = 4 * (2 * half + below)
        for sub, base in ((0, 4), (1, 2)):
            tops |= rest[:, :, :, sub, :, :, :, half, below].astype(np.uint16) << np.uint16(
                (base + group) % 16
            )
    scales = np.ascontiguousarray(fields.scales)
    rows = len(scales)
    scales = scales.reshape(rows // 16, 2, 8, -1, 4, 4).transpose(
        0, 3, 2, 4, 1, 5
    )  # g, quarter, row half, step
    return _join(
        words.transpose(0, 1, 2, 4, 5, 3, 6, 7),
        tops.transpose(0, 1, 2, 4, 5, 3, 6),
        scales,
        _of_records(fields.d, 1),
    )


def _write_iq4_xs(fields: Fields) -> U8:
    codes = fields.codes >> np.uint8(1) | (fields.codes & np.uint8(1)) << np.uint8(3)
    cells = _fragments(codes).astype(np.uint32)
    words: npt.NDArray[np.uint32] = np.zeros(cells.shape[:5], np.uint32)  # step 16, g, t
    for half, below, pair in np.ndindex(2, 2, 2):
        words |= cells[..., half, below, pair] << np.uint32(16 * half + 8 * below + 4 * pair)
    words = words.reshape(*words.shape[:2], 4, 4, 8, 4).transpose(0, 1, 2, 4, 5, 3)
    return _join(words, _of_records(fields.scales, 8), _of_records(fields.d, 1))


def _write_q4_0(fields: Fields) -> U8:
    cells = _fragments(fields.codes)  # step 16, g, t, k half, row half, pair
    both = cells[..., 0, :, :] | cells[..., 1, :, :] << np.uint8(4)
    both = both.reshape(*both.shape[:2], 4, 4, *both.shape[3:]).transpose(0, 1, 2, 4, 5, 3, 6, 7)
    return _join(both, _of_records(fields.d, 8))


_WRITERS: dict[str, Callable[[Fields], U8]] = {
    "BF16": _write_bf16,
    "Q8_0": _write_q8_0,
    "Q4_0": _write_q4_0,
    "Q4_K": _write_k,
    "Q5_K": _write_k,
    "Q6_K": _write_q6_k,
    "IQ4_XS": _write_iq4_xs,
}
