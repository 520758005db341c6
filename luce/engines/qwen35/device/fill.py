"""Pieces of segments to descriptors: the numbers that a pass's kernels read about its rows, lanes and draws."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np
import numpy.typing as npt

from luce.engines.qwen35.device.descriptors import (
    BLOCK_ROWS,
    LANE,
    ROW,
    SOURCE_HISTORY,
    Descriptors,
    image_source,
)
from luce.engines.qwen35.device.passes import Piece
from luce.engines.qwen35.device.slots import UNREAD
from luce.engines.seam import RowSource

__all__ = ["ImageRows", "fill_lanes", "fill_step", "image_rows"]

ROW_WORDS, LANE_WORDS = ROW.itemsize // 4, LANE.itemsize // 4

F32 = npt.NDArray[np.float32]
I32 = npt.NDArray[np.int32]


@attrs.frozen(eq=False)
class ImageRows:
    """Encoded rows that stand in the place of a pass's rows from ``row`` on."""

    row: int
    rows: F32
    """Of the whole picture, [tokens, hidden]."""
    start: int
    """The first of them that is meant."""
    count: int

    @property
    def end(self) -> int:
        """Row of the pass behind the last one."""
        return self.row + self.count

    @property
    def values(self) -> F32:
        """[count, hidden]."""
        return self.rows[self.start : self.start + self.count]


def fill_step(descriptors: Descriptors, pieces: Sequence[Piece], stride: int) -> None:
    """Rows and lanes of a step pass: one row each. ``stride``: entries of a slot's block table."""
    rows, lanes = [], []
    for number, piece in enumerate(pieces):
        work, at = piece.work, piece.start
        slot, prompt = work.slot, work.slot.prompt_length
        if at < prompt:
            t, h, w = slot.spec.positions[:, at].tolist()
        else:
            t = h = w = at + slot.spec.rope_delta
        source = int(slot.ids[at])
        if source == UNREAD:
            source = SOURCE_HISTORY
        elif work.segment.source is RowSource.PROMPT and _image_at(piece) is not None:
            source = image_source(number)
        kv = work.table[at // BLOCK_ROWS] * BLOCK_ROWS + at % BLOCK_ROWS
        rows.append((slot.index, at, source, number, t, h, w, kv))
        lanes.append((slot.index, at, 1, number, piece.base, piece.base_after, slot.index * stride, 0))
    count = len(pieces)
    _ints(descriptors.rows, count, ROW_WORDS)[...] = rows
    _ints(descriptors.lanes, count, LANE_WORDS)[...] = lanes
    descriptors.header[0] = (count, count, 0, 0)


def fill_lanes(descriptors: Descriptors, pieces: Sequence[Piece], stride: int, tile_rows: int) -> int:
    """Rows, lanes and tiles of a chunk pass. Returns the number of rows. ``tile_rows``: of a tile of queries."""
    lanes, tiles, row = [], [], 0
    for number, piece in enumerate(pieces):
        slot, table, count = piece.work.slot, piece.work.table, piece.count
        at = np.arange(piece.start, piece.end)
        rows = _ints(descriptors.rows[row:], count, ROW_WORDS)
        rows[:, 0] = slot.index
        rows[:, 1] = at
        rows[:, 2] = slot.ids[piece.start : piece.end]
        rows[:, 3] = number
        rows[:, 4:7] = slot.positions(piece.start, piece.end).T
        blocks = np.asarray(table, np.int32)[at // BLOCK_ROWS]
        rows[:, 7] = blocks * BLOCK_ROWS + at % BLOCK_ROWS
        lanes.append(
            (slot.index, piece.start, count, row, piece.base, piece.base_after, slot.index * stride, 0)
        )
        tiles += [(number, first) for first in range(0, count, tile_rows)]
        row += count
    for found in image_rows(pieces):
        sources = image_source(0) - np.arange(found.row, found.end)
        descriptors.rows["source"][found.row : found.end] = sources
    _ints(descriptors.lanes, len(lanes), LANE_WORDS)[...] = lanes
    _ints(descriptors.tiles, len(tiles), 2)[...] = tiles
    descriptors.header[0] = (row, len(lanes), 0, len(tiles))
    return row


def image_rows(pieces: Sequence[Piece]) -> list[ImageRows]:
    """The encoded rows that stand in the pieces' prompts, by row of the pass."""
    found, row = [], 0
    for piece in pieces:
        spec = piece.work.slot.spec
        if piece.work.segment.source is RowSource.PROMPT:
            for span in spec.spans:
                low, high = max(piece.start, span.start), min(piece.end, span.start + span.length)
                if low < high:
                    rows = spec.image_rows[span.image]
                    assert rows is not None
                    found.append(ImageRows(row + low - piece.start, rows, low - span.start, high - low))
        row += piece.count
    return found


def _image_at(piece: Piece) -> int | None:
    """The image that the piece's first row is of."""
    for span in piece.work.slot.spec.spans:
        if span.start <= piece.start < span.start + span.length:
            return span.image
    return None


def _ints(records: npt.NDArray[np.void], count: int, width: int) -> I32:
    """The first ``count`` records as int32 [count, width]."""
    return records[:count].view(np.int32).reshape(count, width)
