"""Mooncake's FAST'25 traces: JSON Lines of arrival, lengths and the names of the prompt's 512-token blocks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Annotated

import msgspec

from luce.errors import TraceFileError, reason
from luce.trace.traffic.request import MAX_TOKENS, TrafficRequest
from luce.trace.traffic.rows import lines

__all__ = ["BLOCK_SIZE", "read_mooncake"]

BLOCK_SIZE = 512
"""Tokens of a named block."""

Tokens = Annotated[int, msgspec.Meta(ge=1, le=MAX_TOKENS)]


class _Row(msgspec.Struct, forbid_unknown_fields=True):
    timestamp: Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
    """Milliseconds."""
    input_length: Tokens
    output_length: Tokens
    hash_ids: tuple[Annotated[int, msgspec.Meta(ge=0, le=1 << 53)], ...]


def read_mooncake(path: str | os.PathLike[str], limit: int | None = None) -> Iterator[TrafficRequest]:
    """The requests of a ``*_trace.jsonl``, the first ``limit`` of them, in order of arrival.

    Raises:
        TraceFileError: names the file and the row, and says what is wrong with it.
    """
    decoder = msgspec.json.Decoder(_Row)
    before = 0
    for number, line in lines(path, limit):
        try:
            row = decoder.decode(line)
        except (msgspec.DecodeError, RecursionError) as error:
            raise TraceFileError(path, reason(error), row=number) from None
        blocks = -(-row.input_length // BLOCK_SIZE)
        if len(row.hash_ids) != blocks:
            raise TraceFileError(
                path,
                f"hash_ids has {len(row.hash_ids)} entries; {row.input_length} tokens are {blocks} blocks of "
                f"{BLOCK_SIZE}",
                row=number,
            )
        if row.timestamp < before:
            raise TraceFileError(
                path, f"timestamp {row.timestamp} is earlier than {before}, of the row before", row=number
            )
        before = row.timestamp
        yield TrafficRequest(
            row.timestamp / 1000, row.input_length, row.output_length, row.hash_ids, BLOCK_SIZE
        )
