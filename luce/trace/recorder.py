"""The recorder: what the event stream says goes to files, while the server serves.

Theory of operation. The stream's ring is written by the actors, at no further cost; a few times a second this task
takes what has come since, on the trio thread, so that it is a state of affairs between two events, and has a worker
thread turn it into bytes and write them. A crash loses what came since the last time.

A fault of the disk ends the recording with a warning, and nothing else.
"""

from __future__ import annotations

import logging
import os
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import trio

from luce.errors import ConfigError, reason
from luce.trace.events import EventReader, EventStream, News
from luce.trace.files import Limits, TraceFiles
from luce.trace.schema import Header, Snapshot

__all__ = ["Recorder", "run_name"]

INTERVAL = 0.25
"""Seconds between two looks: half a second is lost at most, with a thread that is slow to come."""

log = logging.getLogger("luce.trace")


def run_name() -> str:
    """Of this process and moment, sorted by time; nobody else's, where process numbers are few."""
    return f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{os.getpid()}-{secrets.token_hex(3)}"


class Recorder:
    """Records one event stream.

    Args:
        directory: where files go.
        limits: how much.
        content: prompts, pictures and answers, too.
        interval: seconds between two looks at the stream.

    Raises:
        ConfigError: the directory cannot be made or written; names ``--trace``.
    """

    def __init__(
        self, directory: Path, limits: Limits, *, content: bool = False, interval: float = INTERVAL
    ) -> None:
        self.directory = directory
        self.content = content
        self._limits = limits
        self._interval = interval
        self._events: EventStream | None = None
        self._reader: EventReader | None = None
        self._files: TraceFiles | None = None
        self._snapshot: Callable[[], Snapshot] | None = None
        self._fault: OSError | None = None
        try:
            directory.mkdir(parents=True, exist_ok=True)
            probe = directory / f".{run_name()}"
            probe.touch()
            probe.unlink()
        except (OSError, ValueError) as error:
            raise ConfigError(f"{directory}: {reason(error)}", flag="--trace") from None

    def attach(self, events: EventStream, header: Header, snapshot: Callable[[], Snapshot]) -> None:
        """Record ``events`` from now on. Called once.

        Args:
            header: of the first file; what depends on the moment is filled in.
            snapshot: how everything stands at the moment; called between two events.

        Raises:
            ConfigError: the first file cannot be written; names ``--trace``.
        """
        self._events, self._snapshot = events, snapshot
        try:
            self._files = TraceFiles(
                self.directory, header, self._limits, snapshot(), events.next_number, events.now()
            )
        except OSError as error:
            raise ConfigError(f"{self.directory}: {reason(error)}", flag="--trace") from None
        self._reader = events.reader(content=self.content)

    @property
    def reader(self) -> EventReader | None:
        """What takes from the stream; None before :meth:`attach`."""
        return self._reader

    @property
    def files(self) -> TraceFiles | None:
        """Where it goes; None before :meth:`attach`, after a fault of the disk, and at the end."""
        return self._files

    async def run(self) -> None:
        """Until cancelled, or the disk fails. :meth:`close` takes what is left."""
        while self._files is not None:
            await trio.sleep(self._interval)
            write = self._take()
            if write is not None:
                await trio.to_thread.run_sync(write, abandon_on_cancel=False)
                self._stop_after_a_fault()

    def flush(self) -> None:
        """Write what has come, here and now. Not while :meth:`run` runs."""
        write = self._take()
        if write is not None:
            write()
            self._stop_after_a_fault()

    def close(self) -> None:
        """Write what is left and end the file. Once nobody runs any more."""
        self.flush()
        self._end()

    def _take(self) -> Callable[[], None] | None:
        """What writes all that has come since the last time; None if there is nothing."""
        files, events, reader = self._files, self._events, self._reader
        if files is None or events is None or reader is None:
            return None
        news = reader.take()
        if not (news.entries or news.details or news.lost):
            return None
        # Where the next file begins, behind these events, everything stands as it does now.
        next_file = None
        if files.full or news.lost:
            if files.removed:
                log.warning(
                    "%s: the file that was being written is gone; the next one is begun", self.directory
                )
            assert self._snapshot is not None
            next_file = self._snapshot()
        return partial(self._write, files, news, next_file, events.now())

    def _write(self, files: TraceFiles, news: News, next_file: Snapshot | None, clock: float) -> None:
        try:
            files.write(news, next_file, clock)
        except OSError as error:
            self._fault = error

    def _stop_after_a_fault(self) -> None:
        if self._fault is not None:
            log.warning("%s: %s; the trace ends here, serving goes on", self.directory, reason(self._fault))
            self._end()

    def _end(self) -> None:
        if self._files is not None:
            with suppress(OSError):
                self._files.close()
            self._files = None
        if self._reader is not None:
            self._reader.close()
