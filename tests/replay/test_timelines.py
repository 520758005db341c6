"""What is made of a trace: the terminal's timeline, Chrome's format, CSV, and differences."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from luce.charts.loader import load_chart
from luce.errors import TraceFileError
from luce.replay.diff import differences, header_differences
from luce.replay.export import COLUMNS, chrome_events, write_chrome, write_csv
from luce.replay.show import LOOKS, Window, span_of, timeline
from luce.replay.tracks import Counts, Encode, Phase, Step, seen
from luce.trace.columns import Located
from luce.trace.events import EventRecord, Range
from luce.trace.reader import FileStart, Item
from luce.trace.schema import Arrival, Encoded, Gap, Landed, Launched, Planned
from tests.sim.crowd import serve_crowd
from tests.sim.simulator import Report
from tests.trace.recording import header, items_of


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> tuple[Report, list[Item]]:
    path = tmp_path_factory.mktemp("trace")
    report = serve_crowd(3, 60, depth=2, trace=path)
    return report, items_of(path)


@pytest.fixture(scope="module")
def trace(served: tuple[Report, list[Item]]) -> list[Item]:
    return served[1]


def details(trace: list[Item], kind: type) -> list[Any]:
    return [
        item[2]
        for item in trace
        if not isinstance(item, EventRecord | FileStart) and isinstance(item[2], kind)
    ]


# -- tracks ---------------------------------------------------------------------------------------------


def test_tracks(served: tuple[Report, list[Item]]) -> None:
    report, trace = served
    found = list(seen(trace))
    steps = [one for one in found if isinstance(one, Step)]
    assert len(steps) == report.metrics.steps
    assert sum(step.rows for step in steps) == report.metrics.rows
    assert sum(step.lanes for step in steps) == report.metrics.lanes
    assert sum(step.device for step in steps) == pytest.approx(report.metrics.device_seconds)
    assert all(step.launched < step.landed for step in steps)
    encodes = [one for one in found if isinstance(one, Encode)]
    assert sum(report.pictures.values()) == len(encodes) > 5
    ends = Counter(one.phase for one in found if isinstance(one, Phase) and one.ends)
    assert ends["finished"] == report.count("length") and ends["cancelled"] == report.count("cancelled")
    counts = [one for one in found if isinstance(one, Counts)]
    assert max(one.running for one in counts) == 8, "all slots"
    assert max(one.waiting for one in counts) > 0 and min(one.free_blocks for one in counts) < 10
    last = counts[-1]
    assert last.waiting == last.running == last.parked == 0, "they follow the end of the last request"
    assert last.free_blocks + last.cached_blocks == 76, "and the release of what it held"
    assert isinstance(found[-1], Phase) or found[-1] == last


# -- Chrome's format ------------------------------------------------------------------------------------


def chrome(trace: list[Item]) -> list[dict[str, Any]]:
    file = io.StringIO()
    count = write_chrome(trace, file)
    document = json.loads(file.getvalue())
    assert document["displayTimeUnit"] == "ms" and len(document["traceEvents"]) == count
    events: list[dict[str, Any]] = document["traceEvents"]
    return events


def test_chrome_events_have_the_fields_that_their_kinds_need(trace: list[Item]) -> None:
    """By the Trace Event Format. What Perfetto makes of it: tests/replay/test_perfetto.py."""
    needed = {
        "M": {"pid", "name", "args"},
        "X": {"pid", "tid", "name", "ts", "dur", "args"},
        "b": {"pid", "tid", "name", "ts", "id", "cat"},
        "e": {"pid", "tid", "name", "ts", "id", "cat"},
        "C": {"pid", "name", "ts", "args"},
        "i": {"pid", "tid", "name", "ts", "s"},
    }
    events = chrome(trace)
    assert {event["ph"] for event in events} == set(needed)
    for event in events:
        assert needed[event["ph"]] <= event.keys(), event
        assert event.get("ts", 0.0) >= 0 and event.get("dur", 0.0) >= 0
        if event["ph"] == "C":
            assert all(isinstance(value, int) for value in event["args"].values())


def test_spans_of_a_request_are_nested(served: tuple[Report, list[Item]]) -> None:
    report, trace = served
    open_spans = defaultdict[str, list[str]](list)
    began = Counter[str]()
    at = dict[str, float]()
    for event in chrome(trace):
        if event["ph"] not in "be":
            continue
        stack = open_spans[event["id"]]
        assert event["ts"] >= at.get(event["id"], 0.0)
        at[event["id"]] = event["ts"]
        if event["ph"] == "b":
            stack.append(event["name"])
            assert len(stack) <= 2
            began[event["name"]] += 1
        else:
            assert stack.pop() == event["name"]
    assert not any(open_spans.values()), "all are closed"
    requests = {result.submission.id for result in report.results if result.refused is None}
    assert {name for name in began if name not in LOOKS} == requests
    assert all(began[name] == 1 for name in requests)
    assert began["decoding"] > 20 and began["ending"] == len(requests)


def test_steps_on_one_track_do_not_overlap(trace: list[Item]) -> None:
    ends = defaultdict[int, float](float)
    threads = Counter[int]()
    for event in sorted((e for e in chrome(trace) if e["ph"] == "X"), key=lambda e: e["ts"]):
        assert event["ts"] >= ends[event["tid"]] - 1e-3, event
        ends[event["tid"]] = event["ts"] + event["dur"]
        threads[event["tid"]] += 1
    assert len(threads) == 3 and min(threads.values()) > 5


def test_a_trace_that_breaks_off_closes_its_spans(trace: list[Item]) -> None:
    half = trace[: len(trace) // 2]
    spans = Counter(event["ph"] for event in chrome_events(half))
    assert spans["b"] == spans["e"] > 10


# -- CSV ------------------------------------------------------------------------------------------------


def test_csv_has_a_row_for_everything(trace: list[Item]) -> None:
    file = io.StringIO(newline="")
    count = write_csv(trace, file)
    file.seek(0)
    rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == COLUMNS and len(rows) == count == len(trace) - 1
    for row, item in zip(rows, trace[1:], strict=True):
        assert int(row["seq"]) == (item.seq if isinstance(item, EventRecord) else item[0])  # type: ignore[index]
        assert float(row["t"]) == (item.t if isinstance(item, EventRecord) else item[1])  # type: ignore[index]
    kinds = Counter(row["kind"] for row in rows)
    assert (
        {"event", "arrival", "alike", "plan", "launch", "result", "failed", "encode", "refused"}
        >= kinds.keys()
        > {"event", "plan"}
    )
    granted = next(row for row in rows if row["event"] == "slot.granted")
    assert granted["machine"] == "request" and granted["configuration"].startswith("live phase ")
    alloc = next(row for row in rows if row["event"] == "alloc")
    assert alloc["id"].split() and len(alloc["id"].split()) == len(alloc["value"].split())
    plan = json.loads(next(row for row in rows if row["kind"] == "plan")["value"])
    assert plan["grants"] or plan["slots"]


# -- the terminal ---------------------------------------------------------------------------------------


def test_lanes_show_phases_where_they_were(trace: list[Item]) -> None:
    span = span_of(trace)
    assert span is not None
    window = Window(*span, 100)
    lines = [line.plain for line in timeline(trace, window, 1000)]
    lanes = {line[:24].strip(): line[25:] for line in lines if line.strip().startswith("r")}
    del lanes["rows, max " + next(line for line in lines if "rows, max" in line)[:24].split()[-1]]
    phases = [one for one in seen(trace) if isinstance(one, Phase)]
    assert lanes.keys() == {one.id for one in phases}
    for name, lane in lanes.items():
        mine = [one for one in phases if one.id == name]
        assert len(lane) == 100
        assert len(lane) - len(lane.lstrip()) == window.column(mine[0].t)
        assert lane.rstrip()[-1] == LOOKS[mine[-1].phase][0]
        assert len(lane.rstrip()) - 1 == window.column(mine[-1].t)
    long = next(one for one in lanes.values() if one.count("█") > 3)
    assert long.strip("█▒.-e| xp!·") == ""
    assert any("steps, max" in line for line in lines) and any(
        "blocks left, max 76" in line for line in lines
    )


def test_a_window_and_few_lanes(trace: list[Item]) -> None:
    phases = [one for one in seen(trace) if isinstance(one, Phase)]
    start, end = phases[0].t + 1.0, phases[0].t + 1.5
    lines = [line.plain for line in timeline(trace, Window(start, end, 50), 3)]
    lanes = [line for line in lines if line[:24].strip().startswith("r") and "max" not in line]
    assert len(lanes) == 3
    for line in lanes:
        mine = [one for one in phases if one.id == line[:24].strip()]
        assert mine[-1].t >= start and mine[0].t <= end, "it lives in the window"
    assert any("more requests" in line for line in lines)


def test_missing_records_are_shown(trace: list[Item]) -> None:
    middle = len(trace) // 2
    at = next(item for item in trace[middle:] if isinstance(item, EventRecord))
    gap: Item = (at.seq, at.t, Gap(17))
    span = span_of(trace)
    assert span is not None
    lines = [line.plain for line in timeline([*trace[:middle], gap, *trace[middle:]], Window(*span, 80), 5)]
    assert any("17 records are missing" in line for line in lines)
    assert any(event["ph"] == "i" for event in chrome_events([*trace[:middle], gap, *trace[middle:]]))


# -- differences ----------------------------------------------------------------------------------------


def test_clock_times_are_no_difference_and_names_are_none(trace: list[Item]) -> None:
    other: list[Item] = []
    for item in trace:
        if isinstance(item, EventRecord):
            name = f"x{item.id}" if item.machine == "request" else item.id
            other.append(item._replace(t=item.t * 2 + 5, id=name))
        elif isinstance(item, FileStart):
            other.append(item)
        elif isinstance(item[2], Arrival):
            renamed: Located = (item[0], item[1] * 2, msgspec.structs.replace(item[2], id=f"x{item[2].id}"))
            other.append(renamed)
        else:
            other.append((item[0], 0.0, item[2]))
    assert list(differences(trace, other)) == []


def test_the_first_difference_of_each_machine(trace: list[Item]) -> None:
    places = [
        place for place, item in enumerate(trace) if isinstance(item, EventRecord) and item.machine == "loop"
    ]
    other = list(trace)
    for place in (places[20], places[25]):
        record = other[place]
        assert isinstance(record, EventRecord)
        other[place] = record._replace(event="other")
    plans = [place for place, item in enumerate(trace) if not isinstance(item, EventRecord | FileStart)
             and isinstance(item[2], Planned) and item[2].slots]  # fmt: skip
    seq, t, plan = trace[plans[3]]  # type: ignore[misc]
    other[plans[3]] = (
        seq,
        t,
        msgspec.structs.replace(plan, slots=(99, *plan.slots[1:])),
    )  # type: ignore[arg-type, union-attr]
    found = {one.machine: one for one in differences(trace, other)}
    assert found.keys() == {"loop", "plan"}
    loop = found["loop"]
    assert loop.place == 20 and loop.one is not None and loop.other is not None
    assert loop.other.what.startswith("other → ") and loop.one.seq == loop.other.seq
    assert found["plan"].one is not None and "segments" in found["plan"].one.what


def changed(trace: list[Item], machine: str, **changes: Any) -> tuple[str, str]:
    """What is said of both sides where a late record of a machine, or plan, is changed."""
    places = [
        place
        for place, item in enumerate(trace)
        if (
            item.machine == machine and (machine != "block" or item.value is not None)
            if isinstance(item, EventRecord)
            else not isinstance(item, FileStart) and machine == "plan" and getattr(item[2], "runs", ())
        )
    ]
    place, other = places[20], list(trace)
    item: Any = other[place]
    if isinstance(item, EventRecord):
        other[place] = item._replace(**changes)
    else:
        other[place] = (item[0], item[1], msgspec.structs.replace(item[2], **changes))
    (found,) = differences(trace, other)
    assert found.one is not None and found.other is not None
    return found.one.what, found.other.what


def test_what_differs_is_said_where_event_and_states_are_the_same(trace: list[Item]) -> None:
    """A guard, a value, a range of blocks; any field of a plan and of its segments."""
    one, other = changed(trace, "request", guards=1 << 3)
    guard = load_chart("request").guard_order[3]
    assert other.endswith(f"; guards {guard}") and one.split("; ")[0] == other.split("; ")[0] != one
    assert changed(trace, "request", guards=1 << 40)[1].endswith("; guards bit 40")
    assert changed(trace, "loop", value=7)[1].endswith("; value 7")
    ids = np.array([70, 71])
    assert "; value of [0] 70" in changed(trace, "block", value=Range(ids, None, ids * 0))[1]
    for field, value in (("ahead", "neither"), ("starts", (98,)), ("slots", (99,)), ("fails", (97,))):
        one, other = changed(trace, "plan", **{field: value})
        assert f"; {field} " in one and f"; {field} " in other and one != other, field
    plans = [plan.runs for plan in details(trace, Planned) if plan.runs]
    first = plans[20][0]
    for field, value in (("count", 96), ("source", "elsewhere"), ("kind", "odd"), ("layers", (1, 2))):
        one, other = changed(
            trace, "plan", runs=(msgspec.structs.replace(first, **{field: value}), *plans[20][1:])
        )
        assert f"; runs [0] {field} " in one and f"; runs [0] {field} " in other and one != other, field


def test_a_machine_that_ends_early_or_is_missing(trace: list[Item]) -> None:
    cut = [item for item in trace if not (isinstance(item, EventRecord) and item.machine == "encoder")]
    (found,) = differences(trace, cut)
    assert (found.machine, found.place, found.other) == ("encoder", 0, None) and found.one is not None
    (found,) = differences(cut, trace)
    assert found.one is None and found.other is not None


def test_behind_a_gap_nothing_is_compared(trace: list[Item]) -> None:
    with pytest.raises(TraceFileError, match="3 records before 9 are missing"):
        list(differences([(9, 0.0, Gap(3))], trace))


def test_what_was_set_otherwise() -> None:
    one, other = header(options={"depth": 1, "same": 2}), header(options={"depth": 2, "same": 2}, model="x")
    assert header_differences(one, one) == []
    assert header_differences(one, other) == ["model", "options.depth"]


# -- details --------------------------------------------------------------------------------------------


def test_arrivals_say_how_much_and_not_what(tmp_path: Path, trace: list[Item]) -> None:
    for arrival in details(trace, Arrival):
        assert arrival.token_ids is None and arrival.positions is None and arrival.stop_strings is None
        assert all(picture.values is None for picture in arrival.pictures)
        assert arrival.prompt_tokens > 0 and len(arrival.prompt_digest) == 16
        assert arrival.sampling["max_tokens"] >= 1
    assert all(landed.sampled is None for landed in details(trace, Landed))
    launches = [one.number for one in details(trace, Launched)]
    assert launches == [one.number for one in details(trace, Landed)] == list(range(1, len(launches) + 1))
    assert {one.request for one in details(trace, Encoded)} <= {one.id for one in details(trace, Arrival)}
