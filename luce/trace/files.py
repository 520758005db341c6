"""Trace files in a directory: names, rotation, and a bound on all of them together.

Several servers may write into one directory. Each holds a lock on the file that it writes (``flock``, which ends with
the process), and nobody makes room with a file that is locked.
"""

from __future__ import annotations

import fcntl
import os
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import attrs
import msgspec

from luce.trace.columns import MOST_RECORDS, BlockWriter, Located
from luce.trace.common_prefixes import CommonPrefixes, Rows
from luce.trace.events import News, Note
from luce.trace.frames import MAGIC, FrameKind, frame
from luce.trace.schema import Gap, Header, Snapshot

__all__ = ["SUFFIX", "Limits", "TraceFiles", "trace_files"]

SUFFIX = ".ltrace"
LEAST_REMEMBERED = 1 << 20
"""Tokens, 4 bytes each."""

_encode = msgspec.msgpack.Encoder().encode


@attrs.frozen
class Limits:
    total: int
    """Bytes of all trace files in the directory, those of earlier runs included."""
    most_file: int = 64 << 20

    @property
    def file(self) -> int:
        """Bytes of one file, after which the next one is begun: old ones can only go whole."""
        return max(1, min(self.most_file, self.total // 4))


def trace_files(directory: Path) -> list[Path]:
    """All in a directory, oldest first. Only files: no links that lead nowhere, no pipes."""
    return [path for path, _ in _sized(directory)]


def _sized(directory: Path) -> list[tuple[Path, int]]:
    """With their sizes in bytes."""
    found = []
    for path in directory.glob(f"*{SUFFIX}"):
        with suppress(OSError):  # gone since, or a link that leads nowhere
            about = path.stat()
            if stat.S_ISREG(about.st_mode):
                found.append((about.st_mtime_ns, path.name, path, about.st_size))
    return [(path, size) for _, _, path, size in sorted(found)]


def _remove(path: Path) -> bool:
    """Unless somebody writes it."""
    try:
        with path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            except OSError:
                pass  # of a file system without locks nothing is known
            path.unlink()
    except FileNotFoundError:
        pass  # another server was quicker
    except PermissionError:
        return False
    return True


class TraceFiles:
    """Writes one run. For one thread at a time.

    Args:
        directory: where.
        header: of the first file; what depends on the moment is filled in.
        snapshot: how everything stands…
        first: …before the record of this number…
        clock: …at this time on the clock of the records.

    Raises:
        OSError: the system takes no more; so do the methods.
    """

    def __init__(
        self, directory: Path, header: Header, limits: Limits, snapshot: Snapshot, first: int, clock: float
    ) -> None:
        self.directory = directory
        self.limits = limits
        self._header = header
        self._number = 0
        self._file: BinaryIO | None = None
        self._blocks = BlockWriter()
        self._prefixes = CommonPrefixes(_remembered(header))
        self._size = 0
        self.total_bytes = 0
        """Of this run, files that are gone included."""
        self.total_records = 0
        directory.mkdir(parents=True, exist_ok=True)
        self._begin(first, snapshot, clock)

    @property
    def full(self) -> bool:
        """Is the next file to be begun?"""
        return self._size >= self.limits.file or self.removed

    @property
    def removed(self) -> bool:
        """Did somebody remove the file that is being written? What goes into it is lost."""
        return self._file is not None and os.fstat(self._file.fileno()).st_nlink == 0

    def write(self, news: News, next_file: Snapshot | None, clock: float) -> None:
        """Append what has come.

        Args:
            next_file: how everything stands behind ``news``, to begin the next file with; None to stay in this one.
            clock: what the clock of the records says now.
        """
        first, entries, pending, lost = news
        details = list(self._made(pending))
        if lost:
            at = clock if not entries else entries[0][0]
            self._append(FrameKind.BLOCK, self._blocks.block(first, (), [(first, at, Gap(lost))]))
        at = 0
        for start in range(0, max(len(entries), 1), MOST_RECORDS):
            part = entries[start : start + MOST_RECORDS]
            end = first + start + len(part)
            last = start + len(part) == len(entries)
            to = len(details) if last else at
            while to < len(details) and details[to][0] < end:
                to += 1
            if part or to > at:
                self._append(FrameKind.BLOCK, self._blocks.block(first + start, part, details[at:to]))
            at = to
        self.total_records += len(entries)
        if next_file is not None:
            self._begin(first + len(entries), next_file, clock)

    def _made(self, pending: Iterable[Note]) -> Iterator[Located]:
        for seq, t, make, given in pending:
            made = make(*given)
            if isinstance(made, Rows):
                made = self._prefixes.add(made)
            if made is not None:
                yield seq, t, made

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _begin(self, first: int, snapshot: Snapshot, clock: float) -> None:
        self.close()
        self._make_room()
        header = msgspec.structs.replace(
            self._header, file=self._number, first=first, wall=time.time(), clock=clock
        )
        path = self.directory / f"{header.run}-{self._number:06d}{SUFFIX}"
        # Unbuffered: what is written is the system's, whatever becomes of this process.
        self._file = path.open("xb", buffering=0)
        with suppress(OSError):  # a file system without locks
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._blocks, self._size = BlockWriter(), 0
        self._number += 1
        self._write(MAGIC)
        self._append(FrameKind.HEADER, _encode(header))
        self._append(FrameKind.SNAPSHOT, _encode(snapshot))

    def _append(self, kind: FrameKind, data: bytes) -> None:
        self._write(frame(kind, data))

    def _write(self, data: bytes) -> None:
        assert self._file is not None
        rest = memoryview(data)
        while rest:
            rest = rest[self._file.write(rest) :]
        self._size += len(data)
        self.total_bytes += len(data)

    def _make_room(self) -> None:
        """For one more file of full size."""
        room = self.limits.total - self.limits.file
        found = _sized(self.directory)
        held = sum(size for _, size in found)
        for path, size in found:
            if held <= room:
                return
            if _remove(path):
                held -= size


def _remembered(header: Header) -> int:
    """Tokens for as long as anything of them can be cached: several times those of all KV blocks, and of who waits."""
    said = header.capabilities
    blocks, size, context = (int(said.get(name, 0)) for name in ("num_blocks", "block_size", "max_context"))
    return max(LEAST_REMEMBERED, 4 * blocks * size + 32 * context)
