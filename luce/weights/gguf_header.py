"""Parser of GGUF headers, safe on hostile files: a length is checked against the file before it is used.

Layout (GGUF versions 2 and 3, little-endian): magic, u32 version, u64 tensor count, u64 key count, the
key-value pairs, the tensor entries (name, dimensions, type, offset), padding to ``general.alignment``,
data. ``GGUFReader`` of the ``gguf`` package trusts all of these fields.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt

from luce.errors import ModelFileError, quoted

__all__ = ["Entry", "HeaderCursor", "read_entries", "read_pairs", "read_preamble", "shortest"]

MAX_KEYS = 1 << 16
MAX_TENSORS = 1 << 16
MAX_KEY_BYTES = 1 << 16
MAX_NAME_BYTES = 1 << 10
MAX_STRING_BYTES = 32 << 20
MAX_ARRAY_STRINGS = 1 << 22
MAX_ARRAY_BYTES = 64 << 20
MAX_DIMS = 4
_STRING, _ARRAY, _BOOL, _FLOAT32 = 8, 9, 7, 6
_SCALARS = {
    0: ("u8", "<B"),
    1: ("i8", "<b"),
    2: ("u16", "<H"),
    3: ("i16", "<h"),
    4: ("u32", "<I"),
    5: ("i32", "<i"),
    6: ("f32", "<f"),
    10: ("u64", "<Q"),
    11: ("i64", "<q"),
    12: ("f64", "<d"),
}


@attrs.frozen
class Entry:
    """A tensor entry as written: dimensions fastest first, offset from the start of the data."""

    name: str
    dims: tuple[int, ...]
    kind: int
    offset: int


@attrs.define(eq=False)
class HeaderCursor:
    """A position in the mapped file. Reading past the end raises :class:`ModelFileError`."""

    path: Path
    data: npt.NDArray[np.uint8]
    at: int = 0
    key: str | None = None
    """Metadata key being read, for messages."""

    def fault(self, message: str) -> ModelFileError:
        where = f"key {quoted(self.key)}: " if self.key is not None else ""
        return ModelFileError(self.path, where + message)

    def take(self, size: int, what: str) -> memoryview:
        left = len(self.data) - self.at
        if size > left:
            raise self.fault(f"is truncated: {what} takes {size} bytes at byte {self.at}, {left} are left")
        self.at += size
        return self.data.data[self.at - size : self.at]

    def number(self, code: str, what: str) -> Any:
        return struct.unpack(code, self.take(struct.calcsize(code), what))[0]

    def string(self, limit: int, what: str) -> str:
        length = self.number("<Q", f"the length of {what}")
        if length > limit:
            raise self.fault(f"{what} has length {length}, over the limit of {limit}")
        try:
            return str(self.take(length, what), "utf-8")
        except UnicodeDecodeError:
            raise self.fault(f"{what} is not UTF-8") from None


def read_preamble(cursor: HeaderCursor) -> tuple[int, int]:
    """Check magic and version; the numbers of tensors and of metadata keys."""
    if cursor.data[:4].tobytes() != b"GGUF":
        raise cursor.fault("is not a GGUF file (it does not start with 'GGUF')")
    cursor.take(4, "the magic")
    version = cursor.number("<I", "the version")
    if version not in (2, 3):
        swapped = int.from_bytes(version.to_bytes(4, "big"), "little")
        hint = " (a big-endian file)" if swapped in (2, 3) else ""
        raise cursor.fault(f"GGUF version {version} is not supported{hint}; versions 2 and 3 are")
    tensors = cursor.number("<Q", "the tensor count")
    keys = cursor.number("<Q", "the key count")
    if tensors > MAX_TENSORS:
        raise cursor.fault(f"tensor count {tensors} is over the limit of {MAX_TENSORS}")
    if keys > MAX_KEYS:
        raise cursor.fault(f"key count {keys} is over the limit of {MAX_KEYS}")
    return tensors, keys


def read_pairs(cursor: HeaderCursor, count: int) -> Iterator[tuple[str, Any]]:
    """Metadata pairs in file order; arrays are lists of bools or strings, or numpy arrays of numbers."""
    for _ in range(count):
        cursor.key = None
        key = cursor.string(MAX_KEY_BYTES, "a metadata key")
        cursor.key = key
        yield key, _value(cursor, cursor.number("<I", "the value type"))
    cursor.key = None


def _value(cursor: HeaderCursor, kind: int) -> Any:
    if kind in _SCALARS:
        found = cursor.number(_SCALARS[kind][1], "the value")
        return shortest(found) if kind == _FLOAT32 else found
    if kind == _BOOL:
        return _bools(cursor, 1)[0]
    if kind == _STRING:
        return cursor.string(MAX_STRING_BYTES, "the string")
    if kind == _ARRAY:
        return _array(cursor)
    raise cursor.fault(f"unknown value type {kind}")


def shortest(value: float) -> float:
    """The shortest decimal that rounds to this float32: the 1e-6 that a writer meant, not 9.99999997e-07."""
    return float(str(np.float32(value)))


def _bools(cursor: HeaderCursor, count: int) -> list[bool]:
    raw = bytes(cursor.take(count, "the value"))
    if raw.strip(b"\0\1"):
        raise cursor.fault("a bool is neither 0 nor 1")
    return [byte == 1 for byte in raw]


def _array(cursor: HeaderCursor) -> Any:
    kind = cursor.number("<I", "the element type")
    count = cursor.number("<Q", "the array length")
    if kind == _STRING:
        if count > MAX_ARRAY_STRINGS or count * 8 > len(cursor.data) - cursor.at:
            raise cursor.fault(f"array length {count} is over the limit or the file")
        return _strings(cursor, count)
    if kind == _ARRAY:
        raise cursor.fault("arrays of arrays are not supported")
    if kind != _BOOL and kind not in _SCALARS:
        raise cursor.fault(f"unknown element type {kind}")
    dtype = np.dtype("u1" if kind == _BOOL else "<" + _numpy_code(_SCALARS[kind][0]))
    if count * dtype.itemsize > MAX_ARRAY_BYTES:
        raise cursor.fault(f"array length {count} is over the limit of {MAX_ARRAY_BYTES} bytes")
    if kind == _BOOL:
        return _bools(cursor, count)
    return np.frombuffer(bytes(cursor.take(count * dtype.itemsize, "the array")), dtype=dtype)


def _numpy_code(name: str) -> str:
    return f"{name[0]}{int(name[1:]) // 8}"


def _strings(cursor: HeaderCursor, count: int) -> list[str]:
    """Vocabularies have 250,000 of these: one loop on local names, checked as single strings are."""
    found: list[str] = []
    data, size, at = cursor.data.data, len(cursor.data), cursor.at
    unpack = struct.Struct("<Q").unpack_from
    for index in range(count):
        if at + 8 > size:
            raise cursor.fault(f"is truncated: string {index} of {count} is past the end of the file")
        length = unpack(data, at)[0]
        at += 8
        if length > size - at or length > MAX_STRING_BYTES:
            raise cursor.fault(f"string {index} of {count} has length {length}, over the limit or the file")
        try:
            found.append(str(data[at : at + length], "utf-8"))
        except UnicodeDecodeError:
            raise cursor.fault(f"string {index} of {count} is not UTF-8") from None
        at += length
    cursor.at = at
    return found


def read_entries(cursor: HeaderCursor, count: int) -> Iterator[Entry]:
    """Tensor entries in file order, with their dimensions checked to be 1 to 4 positive sizes."""
    for index in range(count):
        name = cursor.string(MAX_NAME_BYTES, f"the name of tensor {index} of {count}")
        what = f"tensor {quoted(name)}"
        num_dims = cursor.number("<I", what)
        if not 1 <= num_dims <= MAX_DIMS:
            raise ModelFileError(
                cursor.path, f"has {num_dims} dimensions; 1 to {MAX_DIMS} are allowed", tensor=name
            )
        dims = struct.unpack(f"<{num_dims}Q", cursor.take(8 * num_dims, what))
        if not all(0 < dim < 1 << 48 for dim in dims):
            raise ModelFileError(cursor.path, f"dimensions {list(dims)} are not all in 1 … 2^48", tensor=name)
        kind = cursor.number("<I", what)
        yield Entry(name, dims, kind, cursor.number("<Q", what))
