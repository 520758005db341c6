"""Traces made without a thread, so that virtual time and its order of tasks stay as they are; and by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from luce.charts.loader import chart_names, chart_path, load_chart
from luce.trace.columns import Located
from luce.trace.events import EventRecord, EventStream, News
from luce.trace.files import Limits, TraceFiles
from luce.trace.reader import Item, read_trace, trace_paths
from luce.trace.recorder import Recorder
from luce.trace.schema import VERSION, Header, Snapshot

__all__ = ["StepRecorder", "header", "items_of", "records_of", "written"]


class StepRecorder(Recorder):
    """Writes whenever so many records have come, in the task that made the last of them."""

    def __init__(
        self, directory: Path, limits: Limits | None = None, *, every: int = 700, content: bool = False
    ) -> None:
        super().__init__(directory, limits or Limits(1 << 30), content=content)
        self._every = every

    def attach(self, events: EventStream, head: Header, snapshot: Callable[[], Snapshot]) -> None:
        super().attach(events, head, snapshot)
        events.listen(self._see)

    def _see(self, record: EventRecord) -> None:
        # Who steps a machine tells of it once it has changed, so everything stands as the records say.
        if record.seq % self._every == 0:
            self.flush()

    async def run(self) -> None:
        """There is nothing to wait for."""


def header(**changes: Any) -> Header:
    names = chart_names()
    given: dict[str, Any] = {
        "version": VERSION, "run": "run", "file": 0, "first": 0, "wall": 0.0, "clock": 0.0,
        "charts": {name: chart_path(name).read_text() for name in names},
        "hashes": {name: load_chart(name).sha256 for name in names},
        "content": False, "model": "fake", "fingerprint": None, "options": {}, "capabilities": {}, "versions": {},
    }  # fmt: skip
    return Header(**(given | changes))


def written(
    directory: Path,
    records: Sequence[EventRecord],
    details: Sequence[Located] = (),
    snapshot: Snapshot | None = None,
    **changes: Any,
) -> Path:
    """A file with these records, which follow each other, and details."""
    first = records[0].seq if records else 0
    entries = [record[1:7] if record.value is None else record[1:] for record in records]
    pending = [(seq, t, (lambda detail=detail: detail), ()) for seq, t, detail in details]
    head = header(**changes)
    files = TraceFiles(
        directory, head, Limits(1 << 30), snapshot or Snapshot((), {"block": bytes(64)}), first, 0.0
    )
    files.write(News(first, entries, pending, 0), None, 0.0)
    files.close()
    return directory / f"{head.run}-000000.ltrace"


def items_of(path: Path) -> list[Item]:
    return list(read_trace(trace_paths([path])))


def records_of(path: Path) -> list[EventRecord]:
    return [item for item in items_of(path) if isinstance(item, EventRecord)]
