"""JSON files of a model directory, with a size bound and errors that name the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from luce.errors import ModelFileError, reason
from luce.weights.paths import is_listed
from luce.weights.tensor_file import map_file

__all__ = ["read_json_object", "read_json_object_if_present", "read_text"]

MAX_JSON_BYTES = 64 << 20
"""The largest is ``tokenizer.json``, about 20 MB in this family."""


def read_text(path: Path, limit: int = MAX_JSON_BYTES) -> str:
    """A UTF-8 text file.

    Raises:
        ModelFileError: it is missing, empty, over ``limit`` bytes or not UTF-8.
    """
    data = map_file(path)
    if len(data) > limit:
        raise ModelFileError(path, f"has {len(data)} bytes; the limit is {limit}")
    try:
        return data.tobytes().decode("utf-8")
    except UnicodeDecodeError:
        raise ModelFileError(path, "is not UTF-8") from None


def read_json_object(path: Path) -> dict[str, Any]:
    """A file that holds one JSON object.

    Raises:
        ModelFileError: as :func:`read_text`, or it is not a JSON object.
    """
    text = read_text(path)
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ModelFileError(path, f"is not valid JSON: {reason(error)}") from None
    if not isinstance(found, dict):
        raise ModelFileError(path, "is not a JSON object")
    return found


def read_json_object_if_present(path: Path) -> dict[str, Any]:
    """As :func:`read_json_object`; {} when there is no such file."""
    return read_json_object(path) if is_listed(path) else {}
