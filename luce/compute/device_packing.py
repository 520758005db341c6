"""Weights into records on the device that reads them (kernels/pack_records.cu): the host hands the file's bytes over.

:mod:`luce.compute.packing` makes the same records in numpy, bit for bit.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from luce.compute.device import Array, Device, Kernel
from luce.compute.packing import ROW_BLOCK
from luce.weights import formats

__all__ = ["SOURCES", "pack_into", "pack_kernel"]

U8 = npt.NDArray[np.uint8]

SOURCES = ("F32", "BF16", "F16", "Q8_0", "Q4_0", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS")
"""Formats that the kernel reads; rows of others are decoded on the host."""
PIECE_BYTES = 32 << 20
"""Of a file's rows that are on the device at once, about."""
THREADS = 128


def pack_kernel(device: Device, name: str) -> Kernel:
    """For rows of a format of :data:`SOURCES`."""
    return device.kernel("pack_records.cu", "pack_records", {"SOURCE": f"FORMAT_{name}"})


def pack_into(
    device: Device, to: Array, name: str, rows: U8, depth: int, other_rows: U8 | None = None
) -> None:
    """Queue the packing of rows of a file's format.

    Args:
        to: u8 [row-blocks, records, bytes of a record] in the format's records (``packing.stored_format``). Row-blocks
            past the rows become zeros, and so do records past a row's end; rows past the row-blocks are left out.
        name: any of luce.weights.formats.LOADABLE.
        rows: [N, bytes of a row]; stays as it is until this returns.
        depth: K.
        other_rows: [N, bytes of a row]; a row-block is 8 rows and the same 8 of these (gate and up).
    """
    if name not in SOURCES:
        rows, other_rows = (
            _plain(name, rows, depth),
            other_rows if other_rows is None else _plain(name, other_rows, depth),
        )
        name = "F32"
    kernel, size = pack_kernel(device, name), rows.shape[1]
    each = ROW_BLOCK if other_rows is None else ROW_BLOCK // 2
    blocks, records, record_bytes = to.shape
    at_once = max(1, PIECE_BYTES // (ROW_BLOCK * size))
    staged = device.passing((2, min(at_once, blocks) * each * size), np.uint8)
    for first in range(0, blocks, at_once):
        count = min(at_once, blocks - first)
        pieces: list[Array | None] = [None, None]
        held = 0
        for place, source in enumerate((rows, other_rows)):
            if source is None:
                continue
            piece = source[first * each : (first + count) * each]
            held = len(piece)
            pieces[place] = staged[place]
            if held:
                device.upload(staged[place, : piece.size], np.ascontiguousarray(piece).reshape(-1))
        kernel(
            (records, count, 1),
            THREADS,
            [
                *(*pieces, np.int64(size), np.int32(held), np.int32(depth)),
                *(to[first : first + count], np.int32(record_bytes // 2)),
            ],
        )


def _plain(name: str, rows: U8, depth: int) -> U8:
    """As float32."""
    values = formats.decode(name, rows.reshape(-1), (len(rows), depth))
    return values.view(np.uint8).reshape(len(rows), -1)
