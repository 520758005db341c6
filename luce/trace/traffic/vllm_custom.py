"""The JSON Lines of ``vllm bench serve --dataset-name custom``: prompts as text, without times."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Annotated, Any

import attrs
import msgspec

from luce.errors import TraceFileError, reason
from luce.trace.traffic.request import MAX_TOKENS
from luce.trace.traffic.rows import lines

__all__ = ["CustomPrompt", "read_vllm_custom"]


@attrs.frozen
class CustomPrompt:
    """One row."""

    text: str
    output_tokens: int | None
    """None: the row does not say."""


class _Row(msgspec.Struct):
    prompt: Annotated[str, msgspec.Meta(min_length=1)]
    output_tokens: Annotated[int, msgspec.Meta(ge=1, le=MAX_TOKENS)] | None = None
    image_files: Any = None
    """Of the variant with pictures."""


def read_vllm_custom(path: str | os.PathLike[str], limit: int | None = None) -> Iterator[CustomPrompt]:
    """The prompts of a file, the first ``limit`` of them. Fields that say nothing about the request are passed over.

    Raises:
        TraceFileError: names the file and the row, and says what is wrong with it.
    """
    decoder = msgspec.json.Decoder(_Row)
    for number, line in lines(path, limit):
        try:
            row = decoder.decode(line)
        except (msgspec.DecodeError, RecursionError) as error:
            raise TraceFileError(path, reason(error), row=number) from None
        if row.image_files:
            raise TraceFileError(path, "image_files are not read; prompts of text are", row=number)
        yield CustomPrompt(row.prompt, row.output_tokens)
