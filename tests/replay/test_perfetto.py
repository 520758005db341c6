"""What ``luce replay export --chrome`` writes, opened by Perfetto's own trace processor."""

from __future__ import annotations

import io
import json
from collections import defaultdict
from pathlib import Path

import pytest

from luce.replay.export import write_chrome
from luce.replay.tracks import Counts, Encode, Lost, Phase, Seen, Step, seen
from tests.replay.perfetto import Processor, processor
from tests.sim.crowd import serve_crowd
from tests.trace.recording import items_of

FAULTS = "select name, value from stats where severity != 'info' and value != 0"


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Seen], bytes]:
    """What there is to be seen, and the file."""
    path = tmp_path_factory.mktemp("trace")
    serve_crowd(3, 60, depth=2, trace=path)
    file = io.StringIO()
    write_chrome(items_of(path), file)
    return list(seen(items_of(path))), file.getvalue().encode()


def test_it_opens_and_shows_requests_steps_encodes_and_counters(trace: tuple[list[Seen], bytes]) -> None:
    found, file = trace
    with processor() as opened:
        opened.load(file)
        assert opened.rows(FAULTS) == []
        assert opened.rows("select count(*) as open from slice where dur < 0") == [{"open": 0}]
        assert opened.rows("select name from process where pid = 1") == [{"name": "luce"}]
        _steps_and_encodes(opened, found)
        _requests(opened, found)
        _counters(opened, found)


def _steps_and_encodes(opened: Processor, found: list[Seen]) -> None:
    rows = opened.rows(
        "select thread.name as thread, slice.name, slice.dur / 1e9 as seconds, "
        "extract_arg(arg_set_id, 'args.lanes') as lanes, extract_arg(arg_set_id, 'args.rows') as rows "
        "from slice join thread_track on track_id = thread_track.id join thread using (utid) "
        "where slice.category is null and dur > 0 order by slice.ts"
    )
    steps = [one for one in found if isinstance(one, Step)]
    shown = {row["name"]: row for row in rows if row["thread"].startswith("steps")}
    assert len(shown) == len(steps) > 100
    for step in steps:
        row = shown[f"step {step.number}"]
        assert (row["lanes"], row["rows"]) == (step.lanes, step.rows)
        assert row["seconds"] == pytest.approx(step.landed - step.launched, abs=1e-6)
    encodes = [one for one in found if isinstance(one, Encode)]
    assert len([row for row in rows if row["thread"] == "encodes"]) == len(encodes) > 5


def _requests(opened: Processor, found: list[Seen]) -> None:
    """A track for each, and on it the phases in their order, one behind the other."""
    rows = opened.rows(
        "select track.name as request, slice.name as phase, slice.ts, slice.dur from slice "
        "join track on track_id = track.id where category = 'request' and depth = 1 order by slice.ts, slice.id"
    )
    shown = defaultdict[str, list[str]](list)
    ends = dict[str, int]()
    for row in rows:
        request = row["request"]
        shown[request].append(row["phase"])
        assert abs(row["ts"] - ends.get(request, row["ts"])) <= 1, "nanoseconds"
        ends[request] = row["ts"] + row["dur"]
    phases = defaultdict[str, list[str]](list)
    for one in found:
        if isinstance(one, Phase) and not one.ends:
            phases[one.id].append(one.phase)
    assert shown == phases and len(phases) > 40
    assert any(len(of_one) >= 4 for of_one in phases.values())


def _counters(opened: Processor, found: list[Seen]) -> None:
    rows = opened.rows(
        "select track.name, value from counter join counter_track as track on track_id = track.id "
        "order by ts, counter.id"
    )
    shown = defaultdict[str, list[float]](list)
    for row in rows:
        shown[row["name"]].append(row["value"])
    counts = [one for one in found if isinstance(one, Counts)]
    assert shown == {
        "requests waiting": [one.waiting for one in counts],
        "requests running": [one.running for one in counts],
        "requests parked": [one.parked for one in counts],
        "blocks free": [one.free_blocks for one in counts],
        "blocks cached": [one.cached_blocks for one in counts],
    }
    assert not any(isinstance(one, Lost) for one in found)


def test_it_would_tell_of_an_event_without_a_time(trace: tuple[list[Seen], bytes]) -> None:
    document = json.loads(trace[1])
    del next(event for event in document["traceEvents"] if event["ph"] == "X")["ts"]
    with processor() as opened:
        opened.load(json.dumps(document).encode())
        assert opened.rows(FAULTS) == [{"name": "json_tokenizer_failure", "value": 1}]


def test_a_trace_that_breaks_off_leaves_nothing_open(tmp_path: Path) -> None:
    serve_crowd(3, 30, depth=2, trace=tmp_path)
    items = items_of(tmp_path)
    file = io.StringIO()
    write_chrome(items[: len(items) // 2], file)
    with processor() as opened:
        opened.load(file.getvalue().encode())
        assert opened.rows(FAULTS) == []
        assert opened.rows("select count(*) as open from slice where dur < 0") == [{"open": 0}]
