"""Traces of crowds and of staged passes, recorded while real actors serve them, follow from their charts."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from luce.engines.fake.engine import deepseek_capabilities
from luce.replay.check import Checker, first_divergence
from luce.replay.independent import Voice
from luce.trace.events import EventRecord
from luce.trace.files import Limits
from luce.trace.frames import Frame, FrameKind, frames
from luce.trace.reader import FileStart, read_header, read_trace, trace_paths
from luce.trace.schema import Arrival, Encoded, Landed, Launched, Planned, Refused
from tests.sim import simulator
from tests.sim.crowd import BROKEN, serve_crowd
from tests.sim.simulator import Faults, simulate
from tests.sim.test_mixed_traffic import OPTIONS, TIMES, mixed
from tests.trace.recording import StepRecorder, items_of

SAMPLE = 600
"""Steps that python-statemachine is asked about; it takes more than a millisecond for each."""


def check(path: Path, sample: int = SAMPLE) -> Checker:
    paths = trace_paths([path])
    voice = Voice(read_header(paths[0]).header.charts, sample)
    checker, warnings = Checker(voice), list[str]()
    assert first_divergence(read_trace(paths, warnings), checker) is None
    assert not warnings and voice.checked >= sample
    return checker


@pytest.mark.parametrize("depth", [1, 2])
def test_a_crowd_with_faults(depth: int, tmp_path: Path) -> None:
    faults = Faults(rows=1.0, steps=0.5, copies=0.4, pictures=BROKEN)
    report = serve_crowd(3, 120, depth=depth, trace=tmp_path, faults=faults)
    checker = check(tmp_path)
    assert checker.checked == sum(report.events.values()) and checker.lost == 0
    events = Counter[str]()
    details = Counter[type]()
    for item in items_of(tmp_path):
        if isinstance(item, EventRecord):
            events[f"{item.machine} {item.event}"] += 1
        elif not isinstance(item, FileStart):
            details[type(item[2])] += 1
    assert events == report.events
    for needed in (
        "request park.save", "request resume", "request cancel", "request client.full", "request step.failed",
        "block alloc", "block share", "block release", "block evict", "block save",
        "prefix_entry lock", "prefix_entry evict", "encoder image.failed",
    ):  # fmt: skip
        assert events[needed], needed
    assert details[Launched] == details[Landed] == report.metrics.steps
    assert details[Planned] > report.metrics.steps
    assert details[Refused] == sum(one.client.choices for one in report.results if one.refused is not None)
    assert details[Arrival] == len(report.results) - report.refused
    assert details[Encoded] == sum(report.pictures.values())
    with trace_paths([tmp_path])[0].open("rb") as file:
        blocks = [
            one.data for one in frames(file, "") if isinstance(one, Frame) and one.kind == FrameKind.BLOCK
        ]
    assert sum(map(len, blocks)) / checker.checked < 200, (
        "bytes a record, before they are packed, details included"
    )


def test_staged_passes(tmp_path: Path) -> None:
    options: dict[str, Any] = OPTIONS | {"depth": 2, "staged_rows": 256}
    report = simulate(3, mixed(), deepseek_capabilities(), TIMES, Faults(), tmp_path, **options)
    assert report.events["request slice.done"] and report.events["request prefix.imported"]
    assert check(tmp_path).by_machine["request"] == sum(
        count for name, count in report.events.items() if name.startswith("request ")
    )


def test_files_follow_each_other_and_stand_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each begins with how everything stood, so any of them can be checked without those before it."""
    monkeypatch.setattr(
        simulator, "StepRecorder", lambda path: StepRecorder(path, Limits(1 << 30, 6000), every=300)
    )
    report = serve_crowd(4, 120, depth=2, trace=tmp_path)
    paths = trace_paths([tmp_path])
    assert len(paths) > 4
    checker = Checker()
    assert first_divergence(read_trace(paths), checker) is None
    assert checker.checked == sum(report.events.values())
    started = [item for item in read_trace(paths) if isinstance(item, FileStart)]
    assert any(one.machine == "prefix_entry" for start in started for one in start.snapshot.machines)
    assert sum(one.machine == "request" for start in started for one in start.snapshot.machines) > 4
    for path in paths:
        assert first_divergence(read_trace([path]), Checker()) is None
    # One of them is missing: where the next one begins is known all the same.
    assert first_divergence(read_trace(paths[:2] + paths[3:]), Checker()) is None


def test_a_second_recording_of_a_seed_is_the_same(tmp_path: Path) -> None:
    from luce.replay.diff import differences

    one, other, third = tmp_path / "one", tmp_path / "other", tmp_path / "third"
    reports = [serve_crowd(5, 40, depth=2, trace=path) for path in (one, other)]
    assert reports[0].log == reports[1].log
    assert list(differences(items_of(one), items_of(other))) == []
    serve_crowd(6, 40, depth=2, trace=third)
    found = list(differences(items_of(one), items_of(third)))
    assert found and {"plan", "loop", "request"} <= {one.machine for one in found}
