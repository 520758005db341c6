"""Rows of a file's format into the records of an array on a device."""

from __future__ import annotations

import numpy as np

from luce.compute.device import Array, Device
from luce.compute.packing import pack_rows
from luce.engines.qwen35.device.deferred import MatrixRows

__all__ = ["repeat", "upload_records"]


def upload_records(device: Device, to: Array, rows: MatrixRows) -> None:
    """Pack ``rows`` into ``to`` u8 [row-blocks, records, bytes], as many as it has; records past a row's last are zero
    weights."""
    for first, records in pack_rows(rows.format, rows.data, rows.columns):
        part = to[first : first + len(records)]
        if records.shape[1] < to.shape[1]:
            records = np.pad(records, ((0, 0), (0, to.shape[1] - records.shape[1]), (0, 0)))
        device.upload(part, np.ascontiguousarray(records[: len(part)]))


def repeat(device: Device, array: Array, made: int) -> None:
    """Fill the rest of ``array`` with its first ``made`` entries, over and over (random matrices alone need it)."""
    while made < len(array):
        count = min(made, len(array) - made)
        device.copy(array[made : made + count], array[:count])
        made += count
