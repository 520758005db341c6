"""BurstGPT's traces: CSV of arrivals in seconds and lengths; rows of failed requests have no answer."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from luce.errors import TraceFileError, quoted
from luce.trace.traffic.request import TrafficRequest
from luce.trace.traffic.rows import count, lines

__all__ = ["read_burstgpt"]

FIRST = ("Timestamp", "Model", "Request tokens", "Response tokens", "Total tokens", "Log Type")
"""Of release 1; release 2 has…"""
SECOND = ("Timestamp", "Session ID", "Elapsed time", *FIRST[1:])

_SECONDS = re.compile(r"\d{1,10}(\.\d{1,9})?", re.ASCII)


def read_burstgpt(path: str | os.PathLike[str], limit: int | None = None) -> Iterator[TrafficRequest]:
    """The requests of ``BurstGPT_*.csv``, the first ``limit`` of them, in order of arrival.

    Rows without an answer are requests that failed then. What they asked for is not in the file; they are passed over.

    Raises:
        TraceFileError: names the file and the row, and says what is wrong with it.
    """
    rows = lines(path)
    number, header = next(rows, (1, ""))
    names = tuple(header.removeprefix("\ufeff").split(","))
    if names not in (FIRST, SECOND):
        raise TraceFileError(
            path,
            f"the header must be {','.join(FIRST)} or {','.join(SECOND)}, not {quoted(header)}",
            row=number,
        )
    prompt, answer = names.index("Request tokens"), names.index("Response tokens")
    first = before = None
    found = 0
    for number, line in rows:
        if found == limit:
            return
        cells = line.split(",")
        if len(cells) != len(names):
            raise TraceFileError(path, f"has {len(cells)} cells, the header {len(names)}", row=number)
        if not _SECONDS.fullmatch(cells[0]):
            raise TraceFileError(
                path, f"Timestamp must be a number of seconds, not {quoted(cells[0])}", row=number
            )
        at = float(cells[0])
        if before is not None and at < before:
            raise TraceFileError(path, "Timestamp is earlier than that of the row before", row=number)
        before = at
        first = at if first is None else first
        asked = count(path, number, "Request tokens", cells[prompt], least=0)
        answered = count(path, number, "Response tokens", cells[answer], least=0)
        if asked and answered:
            found += 1
            yield TrafficRequest(at - first, asked, answered)
