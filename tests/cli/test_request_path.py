"""The way of a request through its states, as `luce demo` shows it."""

from __future__ import annotations

from luce.cli.request_path import request_path
from luce.trace.events import EventRecord


def record(t: float, *states: str, name: str = "a", machine: str = "request") -> EventRecord:
    return EventRecord(0, t, machine, name, "e", 0, states)


def test_path_of_a_request() -> None:
    events = [
        record(0.0, "live", "phase", "queued", "client", "flowing"),
        record(0.5, "live", "phase", "queued", "client", "flowing", name="b"),
        record(0.7, "ready", machine="loop"),
        record(1.0, "live", "phase", "encoding", "client", "flowing"),
        record(1.25, "live", "phase", "staging", "staging_chunk", "client", "flowing"),
        record(1.5, "live", "phase", "staging", "staging_wait_rows", "client", "flowing"),
        record(2.0, "live", "phase", "decoding", "client", "stalled"),
        record(2.5, "ending", "ending_outcome", "ending_finished", "ending_rows", "rows_held"),
        record(2.75, "finished"),
    ]
    assert list(map(str, request_path(events, "a"))) == [
        "queued 1000 ms",
        "encoding 250 ms",
        "staging 750 ms",
        "decoding 500 ms",
        "finished",
    ]
    assert request_path(events, "c") == []
