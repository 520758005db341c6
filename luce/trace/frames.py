"""The bytes of a trace file: a magic, then frames, each with its length and checksums.

A frame is written with one call and holds everything that came since the last one, so a file can be read while it is
written, and after a crash up to its last whole frame.
"""

from __future__ import annotations

import enum
import struct
import zlib
from collections.abc import Iterator
from typing import BinaryIO

import attrs

from luce.errors import TraceFileError

__all__ = ["MAGIC", "MAX_FRAME", "Break", "Frame", "FrameKind", "frame", "frames"]

MAGIC = b"\x89luce trace\r\n\x1a"
"""Shows text-mode copies, as PNG's does."""
MAX_FRAME = 1 << 28
"""Bytes, packed or not. Writers keep far below; with content one picture may be large."""

_HEAD = struct.Struct("<IIII")
"""Length of the packed bytes, kind and length unpacked in one, checksum of the packed bytes, and of these three."""
_KIND_SHIFT = 29
_PIECE = 1 << 16
"""Bytes at a time of what is not kept."""


class FrameKind(enum.IntEnum):
    HEADER = 1
    SNAPSHOT = 2
    BLOCK = 3


_KNOWN = frozenset(FrameKind)


@attrs.frozen
class Frame:
    offset: int
    """Of its first byte in the file."""
    kind: int
    """One that no :class:`FrameKind` names comes from a later luce."""
    data: bytes
    """Nothing of a kind that is not known: that is passed over as it is, packed."""


@attrs.frozen
class Break:
    """The file ends here, in the middle of a frame: its writer was killed, or is writing it just now."""

    offset: int


def frame(kind: FrameKind, data: bytes) -> bytes:
    """``data``, packed, with its head."""
    if len(data) > MAX_FRAME:
        raise ValueError(f"a frame of {len(data)} bytes; {MAX_FRAME} is the most")
    packed = zlib.compress(data, 1)
    head = struct.pack("<III", len(packed), kind << _KIND_SHIFT | len(data), zlib.crc32(packed))
    return head + struct.pack("<I", zlib.crc32(head)) + packed


def frames(file: BinaryIO, name: str, most: int = MAX_FRAME) -> Iterator[Frame | Break]:
    """The frames of a file from its start, one in memory at a time; a :class:`Break` last if the file has one.

    Args:
        name: of the file, for errors.
        most: bytes of a frame, packed or not, that are taken into memory.

    Raises:
        TraceFileError: it is no trace file, or a byte of it has changed; names the offset.
    """
    magic = file.read(len(MAGIC))
    if magic != MAGIC:
        if MAGIC.startswith(magic):
            yield Break(0)
            return
        if magic.startswith((b"\x89luce trace\n", b"luce trace")):
            raise TraceFileError(name, "byte 0: line ends were changed on the way here; copy it as binary")
        raise TraceFileError(name, "byte 0: this is no trace of luce: it does not begin like one")
    offset = len(MAGIC)
    while head := file.read(_HEAD.size):
        if len(head) < _HEAD.size:
            yield Break(offset)
            return
        packed, shape, check, head_check = _HEAD.unpack(head)
        if zlib.crc32(head[:-4]) != head_check:
            # After a power cut the end of a file may be there without its bytes.
            if not any(head) and _only_zeros(file):
                yield Break(offset)
                return
            raise TraceFileError(name, f"byte {offset}: the head of a frame is damaged")
        size = shape & (1 << _KIND_SHIFT) - 1
        if max(packed, size) > MAX_FRAME:
            raise TraceFileError(
                name, f"byte {offset}: a frame of {max(packed, size)} bytes; {MAX_FRAME} is the most"
            )
        kind = shape >> _KIND_SHIFT
        known = kind in _KNOWN
        if known and max(packed, size) > most:
            raise TraceFileError(
                name,
                f"byte {offset}: a frame of {max(packed, size)} bytes; {most} is the most that is read here",
            )
        data, length, found = _read(file, packed, keep=known)
        if length < packed:
            yield Break(offset)
            return
        if found != check:
            raise TraceFileError(name, f"byte {offset}: a frame of {packed} bytes is damaged")
        yield Frame(offset, kind, _unpacked(data, size, name, offset) if known else b"")
        offset += _HEAD.size + packed


def _read(file: BinaryIO, count: int, *, keep: bool) -> tuple[bytes, int, int]:
    """So many bytes, if they are to be kept; how many there were, and their checksum."""
    if keep:
        data = file.read(count)
        return data, len(data), zlib.crc32(data)
    length = check = 0
    while length < count and (piece := file.read(min(count - length, _PIECE))):
        length += len(piece)
        check = zlib.crc32(piece, check)
    return b"", length, check


def _unpacked(data: bytes, size: int, name: str, offset: int) -> bytes:
    unpack = zlib.decompressobj()
    try:
        found = unpack.decompress(data, max(size, 1))
    except zlib.error as error:
        raise TraceFileError(name, f"byte {offset}: a frame cannot be unpacked: {error}") from None
    if len(found) != size or not unpack.eof:
        raise TraceFileError(
            name, f"byte {offset}: a frame does not unpack to the {size} bytes that its head says"
        )
    return found


def _only_zeros(file: BinaryIO) -> bool:
    while piece := file.read(_PIECE):
        if any(piece):
            return False
    return True
