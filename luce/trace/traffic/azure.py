"""Azure's LLM inference traces: CSV of wall-clock arrival and lengths; the multimodal one counts pictures, too."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from datetime import datetime

from luce.errors import TraceFileError, quoted
from luce.trace.traffic.request import TrafficRequest
from luce.trace.traffic.rows import count, lines

__all__ = ["read_azure"]

TEXT = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
IMAGES = "NumImages"
MAX_IMAGES = 10_000

_TIMESTAMP = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(?:\.(\d{1,7}))?", re.ASCII)
_EPOCH = datetime(1970, 1, 1)
"""The column names no zone; only differences are used."""
TICKS = 10_000_000
"""In a second: the column has seven digits after the point, one more than a `datetime` holds."""


def read_azure(path: str | os.PathLike[str], limit: int | None = None) -> Iterator[TrafficRequest]:
    """The requests of ``AzureLLMInferenceTrace_*.csv``, the first ``limit`` of them, in order of arrival.

    ``ContextTokens`` are the whole prompt; the traces with ``NumImages`` do not say how many of them are pictures'.

    Raises:
        TraceFileError: names the file and the row, and says what is wrong with it.
    """
    rows = lines(path, None if limit is None else limit + 1)
    number, header = next(rows, (1, ""))
    names = tuple(header.removeprefix("\ufeff").split(","))
    if names not in (TEXT, (*TEXT, IMAGES)):
        raise TraceFileError(
            path,
            f"the header must be {','.join(TEXT)}, with or without {IMAGES} at its end, not {quoted(header)}",
            row=number,
        )
    first = before = None
    for number, line in rows:
        cells = line.split(",")
        if len(cells) != len(names):
            raise TraceFileError(path, f"has {len(cells)} cells, the header {len(names)}", row=number)
        ticks = _ticks(path, number, cells[0])
        if before is not None and ticks < before:
            raise TraceFileError(path, f"{TEXT[0]} is earlier than that of the row before", row=number)
        before = ticks
        first = ticks if first is None else first
        pictures = count(path, number, IMAGES, cells[3], least=0) if len(cells) > len(TEXT) else 0
        if pictures > MAX_IMAGES:
            raise TraceFileError(path, f"{IMAGES} is above {MAX_IMAGES}", row=number)
        yield TrafficRequest(
            arrival=(ticks - first) / TICKS,
            prompt_tokens=count(path, number, TEXT[1], cells[1]),
            output_tokens=count(path, number, TEXT[2], cells[2]),
            images=(0,) * pictures,
        )


def _ticks(path: str | os.PathLike[str], row: int, text: str) -> int:
    match = _TIMESTAMP.fullmatch(text)
    try:
        since = datetime.fromisoformat(match[1]) - _EPOCH if match else None
    except ValueError:
        since = None  # no such day
    if match is None or since is None:
        raise TraceFileError(
            path, f"{TEXT[0]} must look like 2023-11-16 18:15:46.6805900, not {quoted(text)}", row=row
        )
    fraction = (match[2] or "").ljust(7, "0")
    return (since.days * 86_400 + since.seconds) * TICKS + int(fraction)
