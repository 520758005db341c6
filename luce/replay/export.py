"""A trace for other tools: Chrome's trace format, which Perfetto opens, and CSV. Written as it is read."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from typing import IO, Any

import msgspec

from luce.replay.check import charts_of
from luce.replay.tracks import Counts, Encode, Lost, Phase, Step, seen
from luce.trace.events import ANY, EventRecord
from luce.trace.reader import FileStart, Item

__all__ = ["COLUMNS", "chrome_events", "write_chrome", "write_csv"]

PID = 1
_STEPS, _ENCODES = 1, 3
"""Threads. Two for steps, since two may be in flight, one for pictures."""
_THREADS = {_STEPS: "steps (odd)", _STEPS + 1: "steps (even)", _ENCODES: "encodes"}

COLUMNS = ("seq", "t", "kind", "machine", "id", "event", "guards", "configuration", "value")
"""Of the CSV. ``kind`` is 'event', or that of a detail, which is JSON in ``value``."""


def chrome_events(items: Iterable[Item]) -> Iterator[dict[str, Any]]:
    """Requests as asynchronous spans with their phases in them, steps and pictures as complete events, counts as
    counters. Times in microseconds from the first one."""
    yield {"ph": "M", "pid": PID, "name": "process_name", "args": {"name": "luce"}}
    for number, name in _THREADS.items():
        yield {"ph": "M", "pid": PID, "tid": number, "name": "thread_name", "args": {"name": name}}
    zero: float | None = None
    open_spans: dict[str, tuple[str, str]] = {}
    """Of requests under way: the id of their spans, and the phase."""
    last = 0.0
    for one in seen(items):
        at = one.begun if isinstance(one, Encode) else one.launched if isinstance(one, Step) else one.t
        if zero is None:
            zero = at
        at = max(0.0, (at - zero) * 1e6)
        last = max(last, at)
        if isinstance(one, Phase):
            yield from _spans(one, at, open_spans)
        elif isinstance(one, Step):
            args = {"lanes": one.lanes, "rows": one.rows, "device_us": round(one.device * 1e6)}
            thread = _STEPS + (one.number + 1) % 2
            yield _complete(f"step {one.number}", thread, at, one.landed - one.launched, args)
        elif isinstance(one, Encode):
            name = f"{one.rows} rows" if one.rows else "failed"
            whose = {"request": one.request, "digest": one.digest.hex()}
            yield _complete(name, _ENCODES, at, one.ended - one.begun, whose)
        elif isinstance(one, Counts):
            requests = {"waiting": one.waiting, "running": one.running, "parked": one.parked}
            yield {"ph": "C", "pid": PID, "name": "requests", "ts": at, "args": requests}
            blocks = {"free": one.free_blocks, "cached": one.cached_blocks}
            yield {"ph": "C", "pid": PID, "name": "blocks", "ts": at, "args": blocks}
        elif isinstance(one, Lost):
            yield _instant(f"{one.records} records are missing", at, scope="g")
        else:
            yield _instant(f"{one.what} of slot {one.slot} failed: {one.message}", at)
    for name, (span, phase) in open_spans.items():
        yield _span("e", phase, span, last)
        yield _span("e", name, span, last)


def _complete(name: str, thread: int, at: float, seconds: float, args: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "X", "pid": PID, "tid": thread, "name": name, "ts": at, "dur": seconds * 1e6, "args": args}


def _instant(name: str, at: float, scope: str = "t") -> dict[str, Any]:
    return {"ph": "i", "pid": PID, "tid": _STEPS, "s": scope, "name": name, "ts": at}


def _span(kind: str, name: str, span: str, at: float, **args: Any) -> dict[str, Any]:
    return {
        "ph": kind,
        "cat": "request",
        "pid": PID,
        "tid": 0,
        "id": span,
        "name": name,
        "ts": at,
        "args": args,
    }


def _spans(one: Phase, at: float, open_spans: dict[str, tuple[str, str]]) -> Iterator[dict[str, Any]]:
    found = open_spans.pop(one.id, None)
    if found is not None:
        span, phase = found
        yield _span("e", phase, span, at)
    else:
        span = str(one.order) if one.order is not None else one.id
        yield _span("b", one.id, span, at)
    if one.ends:
        yield _span("e", one.id, span, at, end=one.phase)
    else:
        yield _span("b", one.phase, span, at)
        open_spans[one.id] = (span, one.phase)


def write_chrome(items: Iterable[Item], file: IO[str]) -> int:
    """One JSON object, an event a line. Returns how many there are."""
    file.write('{"displayTimeUnit": "ms", "traceEvents": [\n')
    count = 0
    for event in chrome_events(items):
        file.write(",\n" if count else "")
        file.write(msgspec.json.encode(event).decode())
        count += 1
    file.write("\n]}\n")
    return count


def write_csv(items: Iterable[Item], file: IO[str]) -> int:
    """A row for each record and each detail. Returns how many there are."""
    rows = csv.writer(file)
    rows.writerow(COLUMNS)
    count = 0
    guards: dict[str, tuple[str, ...]] = {}
    for item in items:
        if isinstance(item, FileStart):
            guards = {name: chart.guard_order for name, chart in charts_of(item.header, item.path).items()}
            continue
        count += 1
        if isinstance(item, EventRecord):
            seq, t, machine, name, event, bits, states, value = item
            names = [guard for number, guard in enumerate(guards.get(machine, ())) if bits >> number & 1]
            if name == ANY and value is not None:
                name, value = " ".join(map(str, value.ids.tolist())), " ".join(map(str, value.after.tolist()))
            shown = "" if value is None else value
            rows.writerow(
                (seq, repr(t), "event", machine, name, event, " ".join(names), " ".join(states), shown)
            )
        else:
            seq, t, detail = item
            said = msgspec.to_builtins(detail)
            kind = said.pop("type", "unknown")
            rows.writerow(
                (seq, repr(t), kind, "", said.get("id", ""), "", "", "", msgspec.json.encode(said).decode())
            )
    return count
