"""Safetensors files, read strictly: every offset is checked before any tensor is looked at.

Layout: u64 little-endian header length, JSON header ``{name: {dtype, shape, data_offsets: [begin, end]}}``,
data. The tensors must cover the data without holes or overlap, as the format demands. The ``safetensors``
library checks the same, but gives neither raw bytes at an offset nor the name of the tensor at fault.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from luce.errors import ModelFileError, quoted, reason
from luce.weights import formats
from luce.weights.tensor_file import MappedTensors, TensorInfo, map_file

__all__ = ["MAX_HEADER_BYTES", "open_safetensors"]

MAX_HEADER_BYTES = 32 << 20
"""Released models have headers of a few hundred KB."""
_MAX_DIMS = 8
_MAX_VALUES = 1 << 48


def open_safetensors(path: Path) -> MappedTensors:
    """Map a safetensors file and check its header.

    Raises:
        ModelFileError: the file is missing, truncated or malformed; names the tensor where there is one.
    """
    data = map_file(path)
    if len(data) < 8:
        raise ModelFileError(path, f"is truncated: {len(data)} bytes, but the header length alone takes 8")
    length = int.from_bytes(data[:8].tobytes(), "little")
    if length > MAX_HEADER_BYTES:
        raise ModelFileError(path, f"header length {length} is over the limit of {MAX_HEADER_BYTES} bytes")
    if length > len(data) - 8:
        raise ModelFileError(path, f"is truncated: the header has {length} bytes, the file {len(data)}")
    header = _parse_json(path, data[8 : 8 + length].tobytes())
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise ModelFileError(path, "__metadata__ is not an object of strings")
    start = 8 + length
    tensors = {name: _entry(path, name, fields, start) for name, fields in header.items()}
    _check_cover(path, tensors, start, len(data))
    return MappedTensors(path, metadata, tensors, data)


def _parse_json(path: Path, raw: bytes) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in found if names.count(name) > 1)
            raise ModelFileError(path, f"the header names {quoted(twice)} twice")
        return found

    try:
        header = json.loads(raw.decode("utf-8"), object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise ModelFileError(path, f"the header is not valid JSON: {reason(error)}") from None
    if not isinstance(header, dict):
        raise ModelFileError(path, "the header is not a JSON object")
    return header


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value <= _MAX_VALUES


def _entry(path: Path, name: str, fields: object, start: int) -> TensorInfo:
    def fault(message: str) -> ModelFileError:
        return ModelFileError(path, message, tensor=name)

    if not isinstance(fields, dict) or set(fields) != {"dtype", "shape", "data_offsets"}:
        raise fault("the header entry must have exactly dtype, shape and data_offsets")
    dtype, shape, offsets = fields["dtype"], fields["shape"], fields["data_offsets"]
    if not isinstance(dtype, str) or not formats.is_known(dtype) or formats.block_size(dtype) != 1:
        raise fault(f"unknown dtype {quoted(dtype)}")
    if not isinstance(shape, list) or len(shape) > _MAX_DIMS or not all(map(_is_count, shape)):
        raise fault(f"shape {quoted(shape)} is not a list of at most {_MAX_DIMS} sizes")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_is_count, offsets)):
        raise fault(f"data_offsets {quoted(offsets)} is not [begin, end]")
    begin, end = offsets
    nbytes = formats.num_bytes(dtype, tuple(shape))
    if end - begin != nbytes:
        raise fault(f"data_offsets span {end - begin} bytes, but {dtype} {shape} takes {nbytes}")
    return TensorInfo(name, tuple(shape), dtype, nbytes, path, start + begin)


def _check_cover(path: Path, tensors: dict[str, TensorInfo], start: int, size: int) -> None:
    at = start
    for info in sorted(tensors.values(), key=lambda info: (info.offset, info.nbytes)):
        if info.offset != at:
            kind = "overlaps the tensor before it" if info.offset < at else "leaves a hole before it"
            raise ModelFileError(path, f"data at byte {info.offset} {kind} (expected {at})", tensor=info.name)
        at += info.nbytes
        if at > size:
            raise ModelFileError(
                path, f"is truncated: data ends at byte {at}, the file at {size}", tensor=info.name
            )
    if at != size:
        raise ModelFileError(path, f"has {size - at} bytes after the last tensor")
