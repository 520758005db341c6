"""What the host tells the kernels about the rows of a pass: the twin of ``kernels/batch.h``, field by field.

One pinned host buffer and one device buffer of the same layout hold header, rows, lanes, samples, tiles and lists of a
pass; one copy before the pass carries all that varies, so that a captured graph never changes.
"""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import numpy.typing as npt

__all__ = [
    "ADJUST",
    "BLOCK_ROWS",
    "CHUNK_ROWS",
    "CONV_ROWS",
    "DRAWN",
    "FAULT_LOGITS",
    "FAULT_MASK",
    "FAULT_ROWS",
    "LANE",
    "PASS",
    "PIECE",
    "RING_ROWS",
    "ROW",
    "SAMPLE",
    "SAMPLE_GREEDY",
    "SAMPLE_LOGPROBS",
    "SAMPLE_MASK",
    "SAMPLE_MIN_P",
    "SAMPLE_PENALTIES",
    "SAMPLE_TOP_P",
    "SOURCE_HISTORY",
    "STEP_ROWS",
    "TILE",
    "TOP_LOGPROBS",
    "DescriptorLayout",
    "Descriptors",
    "image_source",
]

CHUNK_ROWS = 64
"""Rows between two places where the DeltaNet state may be folded."""
RING_ROWS = 128
"""Ring rows of a slot: position t stands at t mod 128."""
CONV_ROWS = 72
"""Rows before convolution that a slot keeps: position t stands at t mod 72."""
BLOCK_ROWS = 64
"""Tokens of a KV block."""
STEP_ROWS = 64
"""Most rows of a step pass, and most samples of any pass."""
TOP_LOGPROBS = 20
"""Most likely ids that a draw can report."""
SOURCE_HISTORY = -1
"""The row's token is the one in the slot's history at its position."""

SAMPLE_GREEDY, SAMPLE_MASK, SAMPLE_PENALTIES = 1, 2, 4
SAMPLE_TOP_P, SAMPLE_LOGPROBS, SAMPLE_MIN_P = 8, 16, 32
FAULT_LOGITS, FAULT_MASK, FAULT_ROWS = 1, 2, 4


def _record(*fields: tuple[Any, ...]) -> np.dtype[np.void]:
    return np.dtype(list(fields))


def _ints(*names: str) -> list[tuple[str, str]]:
    return [(name, "<i4") for name in names]


PASS = _record(*_ints("rows", "lanes", "samples", "tiles"))
ROW = _record(*_ints("slot", "position", "source", "lane", "t", "h", "w", "kv"))
LANE = _record(*_ints("slot", "start", "count", "row", "base", "base_after", "table", "reserved"))
TILE = _record(*_ints("lane", "first"))
SAMPLE = _record(
    *_ints("row", "slot", "position"),
    ("flags", "<u4"),
    ("temperature", "<f8"),
    ("log_min_p", "<f8"),
    ("top_p", "<u8"),
    *_ints("top_k", "logprobs"),
    ("seed", "<u4", (2,)),
    ("repetition", "<f8"),
    ("presence", "<f8"),
    ("frequency", "<f8"),
    *_ints("first_generated", "bias", "num_bias", "ends", "num_ends", "mask"),
    ("reserved", "<i4", (2,)),
)
ADJUST = _record(("add", "<f8"), *_ints("id", "reserved"))
DRAWN = _record(
    *_ints("token", "faults"),
    ("logprob", "<f4"),
    ("num_top", "<i4"),
    ("top_ids", "<i4", (TOP_LOGPROBS,)),
    ("top_logprobs", "<f4", (TOP_LOGPROBS,)),
    ("reserved", "<i4", (4,)),
)
PIECE = _record(("to", "<i8"), ("from", "<i8"), ("bytes", "<i8"))
"""One copy or fill of ``kernels/copies.cu``; multiples of 16 bytes."""

_ALIGN = 256


def image_source(row: int) -> int:
    """What :data:`ROW`'s source holds for row ``row`` of the image rows."""
    return -2 - row


@attrs.frozen
class DescriptorLayout:
    """Where the parts of a pass's buffer begin, in bytes, for the most of each that it can hold."""

    rows: int
    lanes: int
    samples: int
    tiles: int
    lists: int
    """Entries of :data:`ADJUST`."""

    @property
    def parts(self) -> tuple[tuple[str, np.dtype[np.void], int], ...]:
        """(name, record, count) in the order of the buffer."""
        return (
            ("header", PASS, 1),
            ("rows", ROW, self.rows),
            ("lanes", LANE, self.lanes),
            ("samples", SAMPLE, self.samples),
            ("tiles", TILE, self.tiles),
            ("lists", ADJUST, self.lists),
        )

    @property
    def offsets(self) -> dict[str, int]:
        found, at = {}, 0
        for name, record, count in self.parts:
            found[name] = at
            at += -(-record.itemsize * count // _ALIGN) * _ALIGN
        return found

    @property
    def nbytes(self) -> int:
        _, record, count = self.parts[-1]
        return self.offsets["lists"] + -(-record.itemsize * count // _ALIGN) * _ALIGN


class Descriptors:
    """Views of the parts of one host buffer."""

    def __init__(self, layout: DescriptorLayout, buffer: npt.NDArray[np.uint8]) -> None:
        """``buffer`` [layout.nbytes], 16-byte aligned."""
        assert buffer.nbytes == layout.nbytes
        self.layout, self.buffer = layout, buffer
        views: dict[str, npt.NDArray[np.void]] = {}
        for name, record, count in layout.parts:
            at = layout.offsets[name]
            views[name] = buffer[at : at + record.itemsize * count].view(record)
        self.header, self.rows, self.lanes = views["header"], views["rows"], views["lanes"]
        self.samples, self.tiles, self.lists = views["samples"], views["tiles"], views["lists"]
