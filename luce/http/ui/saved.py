"""A saved trace for the page: read, checked against its charts, and told as a running server would tell it.

The file is read on a worker thread, a piece at a time, as the page takes it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import trio

from luce.errors import TraceFileError
from luce.http.sse import data
from luce.http.ui.wire import End, Hello, Illegal, News, Strip, chart_infos, encode, strip_of
from luce.replay.check import Checker, charts_of
from luce.replay.tracks import Tracks
from luce.trace.events import ANY, EventRecord
from luce.trace.reader import FileStart, Item, TraceFile, start_of

__all__ = ["MOST_RECORDS", "SavedEvents"]

MOST_RECORDS = 200_000
"""Of a trace that a page is shown at once."""
MOST_FRAME = 64 << 20
"""Bytes of a frame that a page can be shown: a few large pictures between two looks of the recorder."""
PIECE = 4000
"""Items in a frame."""


class SavedEvents:
    """An :class:`luce.http.sse.EventSource` on one file.

    Args:
        path: the file; read only while events are asked for.
        skip: records at its beginning that are read and not shown.

    Raises:
        TraceFileError: it is no trace; later ones are the last thing that the page is told.
    """

    def __init__(self, path: Path, skip: int = 0) -> None:
        self._file = TraceFile(path, most_frame=MOST_FRAME, name="the uploaded file")
        start = start_of(self._file)
        self._start = start
        self._skip = skip
        self._charts = charts_of(start.header, self._file.name)
        self._tracks = Tracks(self._charts.get("block"), start.snapshot)
        self._checker: Checker | None = Checker()
        self._frames = self._read()

    def first(self) -> bytes:
        header = self._start.header
        return data(
            encode(
                Hello(
                    live=False,
                    now=header.clock,
                    wall=header.wall,
                    model=header.model,
                    slots=int(header.capabilities.get("num_slots", 0)),
                    blocks=len(self._start.snapshot.tables.get("block", b"")),
                    charts=chart_infos(self._charts.values()),
                    machines=self._start.snapshot.machines,
                    strips=[strip_of(self._tracks.counts(header.clock))],
                    options=header.options,
                )
            )
        )

    async def next(self) -> bytes:
        return await trio.to_thread.run_sync(partial(next, self._frames, b""), abandon_on_cancel=False)

    def _read(self) -> Iterator[bytes]:
        shown = passed = 0
        more = False
        news = _Gathered()
        try:
            for item in self._file:
                strips, illegal = self._seen(item)
                if isinstance(item, EventRecord):
                    passed += 1
                    if passed <= self._skip:
                        continue
                    if shown == MOST_RECORDS:
                        more = True
                        break
                    shown += 1
                    news.add(item)
                news.strips += strips
                if illegal is not None:
                    news.illegal.append(illegal)
                if len(news) >= PIECE:
                    yield news.frame()
                    news = _Gathered()
        except TraceFileError as error:
            yield news.frame()
            yield data(encode(End(shown, False, (str(error),))))
            return
        yield news.frame()
        warnings = (self._file.warning,) if self._file.warning is not None and not more else ()
        yield data(encode(End(shown, more, warnings)))

    def _seen(self, item: Item) -> tuple[list[Strip], Illegal | None]:
        illegal = None
        if self._checker is not None:
            found = self._checker.see(item)
            if found is not None:
                self._checker = None  # what follows does not follow from what stood before
                at = found.record
                illegal = Illegal(at.t, at.machine, at.id, at.event, at.configuration, found.why)
        if isinstance(item, EventRecord):
            seen = self._tracks.record(item.t, item.machine, item.id, item.configuration, item.value)
        elif isinstance(item, FileStart):
            return [], illegal
        else:
            seen = self._tracks.detail(item[1], item[2])
        return list(map(strip_of, seen)), illegal


class _Gathered:
    """What the next frame says."""

    def __init__(self) -> None:
        self.first: int | None = None
        self.now = 0.0
        self.steps: list[tuple[object, ...]] = []
        self.strips: list[Strip] = []
        self.illegal: list[Illegal] = []

    def __len__(self) -> int:
        return len(self.steps) + len(self.strips)

    def add(self, record: EventRecord) -> None:
        if self.first is None:
            self.first = record.seq
        self.now = record.t
        if record.value is None and record.id != ANY:
            self.steps.append(record[1:7])

    def frame(self) -> bytes:
        return data(
            encode(
                News(
                    now=self.now,
                    first=self.first or 0,
                    steps=self.steps,
                    strips=self.strips,
                    illegal=tuple(self.illegal),
                )
            )
        )
