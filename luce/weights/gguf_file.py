"""GGUF files as tensor files: :mod:`luce.weights.gguf_header` parses the header, offsets are checked here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf

from luce.errors import ModelFileError, quoted
from luce.weights import formats
from luce.weights.gguf_header import Entry, HeaderCursor, read_entries, read_pairs, read_preamble
from luce.weights.tensor_file import MappedTensors, TensorInfo, map_file

__all__ = ["DEFAULT_ALIGNMENT", "open_gguf", "peek_gguf"]

DEFAULT_ALIGNMENT = 32
_MAX_ALIGNMENT = 1 << 20


def open_gguf(path: Path) -> MappedTensors:
    """Map a GGUF file and check its whole header; data is not read.

    Raises:
        ModelFileError: the file is missing, truncated, malformed or hostile; names the key or tensor at
        fault.
    """
    data = map_file(path)
    cursor = HeaderCursor(path, data)
    num_tensors, num_keys = read_preamble(cursor)
    metadata: dict[str, Any] = {}
    for key, value in read_pairs(cursor, num_keys):
        if key in metadata:
            raise ModelFileError(path, f"key {quoted(key)} appears twice")
        metadata[key] = value
    alignment = _alignment(path, metadata)
    entries = list(read_entries(cursor, num_tensors))
    start = -(-cursor.at // alignment) * alignment
    tensors: dict[str, TensorInfo] = {}
    for entry in entries:
        if entry.name in tensors:
            raise ModelFileError(path, "appears twice", tensor=entry.name)
        tensors[entry.name] = _info(path, entry, start, len(data), alignment)
    _check_overlap(path, tensors)
    return MappedTensors(path, metadata, tensors, data)


def peek_gguf(path: Path) -> dict[str, Any]:
    """The leading ``general.*`` metadata only: tells a text model from an mmproj without the vocabulary.

    Raises:
        ModelFileError: as :func:`open_gguf`, as far as the file was read.
    """
    cursor = HeaderCursor(path, map_file(path))
    _, num_keys = read_preamble(cursor)
    found: dict[str, Any] = {}
    for key, value in read_pairs(cursor, num_keys):
        if not key.startswith("general.") and "general.architecture" in found:
            break
        found[key] = value
    return found


def _alignment(path: Path, metadata: dict[str, Any]) -> int:
    value = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if type(value) is not int or not 1 <= value <= _MAX_ALIGNMENT or value & (value - 1):
        raise ModelFileError(path, f"general.alignment is {quoted(value)}, not a power of two")
    return value


def _info(path: Path, entry: Entry, start: int, size: int, alignment: int) -> TensorInfo:
    def fault(message: str) -> ModelFileError:
        return ModelFileError(path, message, tensor=entry.name)

    try:
        name = gguf.GGMLQuantizationType(entry.kind).name
    except ValueError:
        raise fault(f"unknown type {entry.kind}") from None
    if not formats.is_known(name):
        raise fault(f"type {name} has no known size")
    shape = tuple(reversed(entry.dims))
    try:
        nbytes = formats.num_bytes(name, shape)
    except ValueError as error:
        raise fault(str(error)) from None
    if entry.offset % alignment:
        raise fault(f"offset {entry.offset} is not a multiple of the alignment {alignment}")
    if start + entry.offset + nbytes > size:
        raise fault(
            f"is truncated or its offset is wrong: data of {nbytes} bytes ends at byte "
            f"{start + entry.offset + nbytes}, the file at {size}"
        )
    return TensorInfo(entry.name, shape, name, nbytes, path, start + entry.offset)


def _check_overlap(path: Path, tensors: dict[str, TensorInfo]) -> None:
    end, before = 0, ""
    for info in sorted(tensors.values(), key=lambda info: info.offset):
        if info.offset < end:
            raise ModelFileError(path, f"overlaps tensor {quoted(before)}", tensor=info.name)
        end, before = info.offset + info.nbytes, info.name
