"""One record removed, moved, doubled or changed, with every checksum around it made right again: it is named."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from luce.errors import TraceFileError
from luce.trace.frames import MAGIC, FrameKind, frame, frames
from tests.trace.recording import records_of, written
from tests.trace.sample_records import LONG


def tampered(path: Path, change: Callable[[list[list[Any]]], None]) -> None:
    """Rewrites the columns of a file's only block."""
    with path.open("rb") as file:
        kept = [one for one in frames(file, "") if not hasattr(one, "kind") or one.kind != FrameKind.BLOCK]
        file.seek(0)
        (block,) = [one for one in frames(file, "") if getattr(one, "kind", 0) == FrameKind.BLOCK]
    data = block.data  # type: ignore[union-attr]
    first, count = struct.unpack_from("<QI", data)
    at, columns = 12, []
    for width in (8, 4, 4, 2):
        raw = np.frombuffer(data, np.uint8, count * width, at).reshape(width, count)
        columns.append(np.ascontiguousarray(raw.T).view(f"<u{width}").reshape(count))
        at += count * width
    columns[0] = np.cumsum(columns[0].view("<i8")).view("<u8")
    rows = [list(row) for row in zip(*(column.tolist() for column in columns), strict=True)]
    change(rows)
    pieces = [struct.pack("<QI", first, len(rows))]
    for place, width in enumerate((8, 4, 4, 2)):
        column = np.array([row[place] for row in rows], f"<u{width}")
        if place == 0:
            column = np.diff(column.view("<i8"), prepend=np.int64(0)).view("<u8")
        pieces.append(column.view(np.uint8).reshape(len(rows), width).T.tobytes())
    made = MAGIC + b"".join(frame(FrameKind(one.kind), one.data) for one in kept)  # type: ignore[union-attr]
    path.write_bytes(made + frame(FrameKind.BLOCK, b"".join(pieces) + data[at:]))


@pytest.mark.parametrize("kind", ["removed", "swapped", "doubled", "time", "who", "what"])
@given(place=st.integers(0, len(LONG) - 2))
@settings(deadline=None, max_examples=len(LONG), derandomize=True)
def test_a_record_that_was_tampered_with_is_named(
    tmp_path_factory: pytest.TempPathFactory, kind: str, place: int
) -> None:
    def change(rows: list[list[Any]]) -> None:
        if kind == "removed":
            del rows[place]
        elif kind == "swapped":
            rows[place], rows[place + 1] = rows[place + 1], rows[place]
        elif kind == "doubled":
            rows.insert(place, list(rows[place]))
        elif kind == "time":
            rows[place][0] += 1
        else:
            column, other = (1, 3) if kind == "who" else (2, 2)
            rows[place][column] = (rows[place][column] + 1) % other

    path = written(tmp_path_factory.mktemp("trace"), LONG)
    assert records_of(path) == LONG
    tampered(path, lambda rows: None)
    assert records_of(path) == LONG, "the trap: it is the change that is found"
    tampered(path, change)
    # A doubled record is the right one where it stands first.
    named = 100 + place + (kind == "doubled")
    with pytest.raises(TraceFileError, match=rf"byte \d+: record {named} is not the one that was written"):
        records_of(path)
