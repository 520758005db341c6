"""Reads traces: one file, or the files of one run in a row, record by record, in the memory of one block."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import attrs
import msgspec

from luce.errors import TraceFileError, quoted, reason
from luce.trace.columns import BlockReader, Located
from luce.trace.events import EventRecord
from luce.trace.files import trace_files
from luce.trace.frames import MAX_FRAME, Break, FrameKind, frames
from luce.trace.objects import check_objects
from luce.trace.plain_values import check_depth
from luce.trace.schema import MOST_CAPABILITIES, VERSION, Gap, Header, Snapshot

__all__ = ["FileStart", "Item", "TraceFile", "read_header", "read_trace", "start_of", "trace_paths"]


class _Version(msgspec.Struct):
    version: int


@attrs.frozen
class FileStart:
    """A file begins."""

    path: Path
    header: Header
    snapshot: Snapshot


Item = FileStart | EventRecord | Located


class TraceFile:
    """One file.

    Args:
        path: what is read.
        most_frame: bytes of a frame that are taken into memory.
        name: what errors and warnings call it; its path if None.
    """

    def __init__(self, path: Path, *, most_frame: int = MAX_FRAME, name: str | None = None) -> None:
        self.path = path
        self.name = os.fspath(path) if name is None else name
        self._most = most_frame
        self.warning: str | None = None
        """Once everything is read: where the file breaks off."""
        self.offset = 0
        """Of the frame that the last item stands in."""

    def __iter__(self) -> Iterator[Item]:
        """Its start, then records and details in their order.

        Raises:
            TraceFileError: it cannot be opened, is no trace, of another version, or damaged; names file and offset.
        """
        try:
            with self.path.open("rb") as file:
                yield from self._items(file)
        except OSError as error:
            raise TraceFileError(self.name, reason(error)) from None

    def _items(self, file: object) -> Iterator[Item]:
        blocks = BlockReader()
        header: Header | None = None
        snapshot: Snapshot | None = None
        expected = 0
        for frame in frames(file, self.name, self._most):  # type: ignore[arg-type]
            self.offset = frame.offset
            if isinstance(frame, Break):
                self._break(frame.offset)
                return
            try:
                if frame.kind == FrameKind.HEADER:
                    header = _header(frame.data)
                    expected = header.first
                elif header is None:
                    raise ValueError("the first frame is no header")  # noqa: TRY301
                elif frame.kind == FrameKind.SNAPSHOT:
                    check_objects(frame.data)
                    snapshot = msgspec.msgpack.decode(frame.data, type=Snapshot)
                    yield FileStart(self.path, header, snapshot)
                elif frame.kind == FrameKind.BLOCK:
                    if snapshot is None:
                        raise ValueError("a block stands before the snapshot")  # noqa: TRY301
                    first, items = blocks.read(frame.data)
                    for item in items:
                        if isinstance(item, EventRecord):
                            if item.seq < expected or (item.seq > expected and first == expected):
                                raise ValueError(  # noqa: TRY301
                                    f"record {item.seq} stands where {expected} should"
                                )
                            expected = item.seq + 1
                        yield item
            except (ValueError, msgspec.DecodeError, msgspec.ValidationError, RecursionError) as error:
                said = reason(error) if isinstance(error, RecursionError) else error
                raise TraceFileError(self.name, f"byte {frame.offset}: {said}") from None
        if snapshot is None:
            self._break(self.offset)

    def _break(self, offset: int) -> None:
        self.warning = (
            f"{self.name}: it breaks off at byte {offset}: its writer was killed, or still writes; "
            "everything before that is read"
        )


def _header(data: bytes) -> Header:
    check_objects(data)
    version = msgspec.msgpack.decode(data, type=_Version).version
    if version != VERSION:
        raise ValueError(
            f"the trace has version {version}, and this luce reads {VERSION}; use the luce that recorded it"
        )
    header = msgspec.msgpack.decode(data, type=Header)
    check_depth(header.options)
    check_depth(header.capabilities)
    for name, most in MOST_CAPABILITIES.items():
        value = header.capabilities.get(name, 0)
        if not isinstance(value, int) or not 0 <= value <= most:
            raise ValueError(f"its engine has {quoted(value)} as {name}, which is no number from 0 to {most}")
    return header


def read_header(path: Path) -> FileStart:
    """How a file begins.

    Raises:
        TraceFileError: as :class:`TraceFile`, or it breaks off before.
    """
    return start_of(TraceFile(path))


def start_of(file: TraceFile) -> FileStart:
    """As :func:`read_header`."""
    for item in file:
        if isinstance(item, FileStart):
            return item
    raise TraceFileError(file.name, "it breaks off within its header; nothing is in it")


def trace_paths(given: Iterable[Path]) -> list[Path]:
    """Files as they were given, and directories as the trace files in them, sorted by run and number.

    Raises:
        TraceFileError: a path is not there, or a directory has no trace in it.
    """
    found: list[Path] = []
    for path in given:
        try:
            if path.is_dir():
                inside = sorted(trace_files(path))
                if not inside:
                    raise TraceFileError(
                        path, "no trace is in this directory; luce serve --trace writes them"
                    )
                found += inside
            elif path.exists():
                found.append(path)
            else:
                raise TraceFileError(path, "no such file")
        except (OSError, ValueError) as error:
            raise TraceFileError(path, reason(error)) from None
    return found


def read_trace(
    paths: Iterable[Path], warnings: list[str] | None = None, *, unbroken: bool = False
) -> Iterator[Item]:
    """The items of several files, one file after the other.

    Args:
        warnings: gets a line for every file that breaks off, and for every one before which records of its run are
            missing.
        unbroken: that records are missing between two files of a run is an error.

    Raises:
        TraceFileError: as :class:`TraceFile`; or a file stands behind a later one of its run, or twice.
    """
    nexts: dict[str, int | None] = {}
    """By run: the number of the record that its next file begins with; None: the recorder had lost some."""
    for path in paths:
        file, run = TraceFile(path), ""
        for item in file:
            if isinstance(item, EventRecord):
                nexts[run] = item.seq + 1
            elif isinstance(item, FileStart):
                run = item.header.run
                missing = _missing(path, item.header.first, nexts.get(run))
                if missing is not None and unbroken:
                    raise TraceFileError(path, missing)
                if missing is not None and warnings is not None:
                    warnings.append(f"{path}: {missing}")
                nexts[run] = item.header.first
            elif isinstance(item[2], Gap):
                nexts[run] = None
            yield item
        if file.warning is not None and warnings is not None:
            warnings.append(file.warning)


def _missing(path: Path, first: int, expected: int | None) -> str | None:
    """What is to be said of the records between two files of a run."""
    if expected is None or first == expected:
        return None
    if first < expected:
        raise TraceFileError(
            path,
            f"it begins with record {first}, and record {expected - 1} of its run stands before it: give each file of "
            "a run once, in their order",
        )
    return f"records {expected} to {first - 1} of its run are missing before it: a file, or the end of one"
