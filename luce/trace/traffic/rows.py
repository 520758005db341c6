"""Reading trace files line by line, so that every error can say where."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from luce.errors import TraceFileError, quoted, reason
from luce.trace.traffic.request import MAX_TOKENS

__all__ = ["MAX_LINE", "count", "lines"]

MAX_LINE = 1 << 20
"""Characters of a line, its end included. The longest known one, 120,000 prompt tokens in blocks of 512, has 1,600."""


def lines(path: str | os.PathLike[str], limit: int | None = None) -> Iterator[tuple[int, str]]:
    """Row numbers from 1 and the lines without their ends, at most ``limit`` of them.

    Raises:
        TraceFileError: the file cannot be read, is no UTF-8 text, or has an empty line or one that is far too long.
    """
    row = 0
    try:
        with Path(path).open(encoding="utf-8", errors="surrogateescape", newline="") as file:
            for row, line in enumerate(islice(iter(lambda: file.readline(MAX_LINE), ""), limit), 1):
                text = line.rstrip("\r\n")
                if not text:
                    raise TraceFileError(path, "the line is empty", row=row)
                if len(line) == MAX_LINE:
                    raise TraceFileError(path, f"the line has {MAX_LINE} characters or more", row=row)
                if (
                    not text.isascii()
                ):  # here, not while the file is read, which is ahead by thousands of bytes
                    text.encode("utf-8", "surrogateescape").decode("utf-8")
                yield row, text
    except OSError as error:
        raise TraceFileError(path, f"cannot be read: {reason(error)}") from None
    except UnicodeDecodeError as error:
        raise TraceFileError(path, f"is not UTF-8 text: {reason(error)}", row=row) from None


def count(path: str | os.PathLike[str], row: int, field: str, text: str, least: int = 1) -> int:
    """A number of tokens or pictures, written in decimal digits.

    Raises:
        TraceFileError: it is none, or out of range.
    """
    if not (text.isascii() and text.isdigit() and len(text) <= 9 and least <= int(text) <= MAX_TOKENS):
        raise TraceFileError(
            path, f"{field} must be a whole number from {least} to {MAX_TOKENS}, not {quoted(text)}", row=row
        )
    return int(text)
