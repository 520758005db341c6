"""Load: requests of traces of every format, within a window, scaled, and of luce's own."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from luce.replay.load.recorded import recorded_load
from luce.replay.load.request import Leaving, Stall
from luce.replay.load.sources import Window, format_of, load_requests
from luce.replay.recorded_requests import RecordedRequest, recorded_requests
from luce.trace.reader import read_trace, trace_paths
from luce.trace.traffic.request import TrafficRequest
from tests.replay.load_case import plain
from tests.sim.crowd import serve_crowd
from tests.sim.files import DATA


def test_formats_are_told_by_their_beginnings(tmp_path: Path) -> None:
    assert format_of(DATA / "mooncake_conversation.jsonl") == "mooncake"
    assert format_of(DATA / "azure_code.csv") == "azure"
    assert format_of(DATA / "servegen_image_client20.trace.csv") == "servegen"
    assert format_of(tmp_path) == "luce"
    for content, kind in (('{"prompt": "x"}\n', "vllm"), ("Timestamp,Model,Request tokens\n", "burstgpt")):
        (tmp_path / "file").write_text(content)
        assert format_of(tmp_path / "file") == kind
    assert format_of(DATA / "servegen_image_client20.dataset.json") == "servegen"
    (tmp_path / "file").write_text('{ "0.0": {"text_tokens": "{5: 1.0}"}}')
    assert format_of(tmp_path / "file") == "servegen"
    with pytest.raises(Exception, match=r"^TRACE: file has no arrivals; name the …trace.csv"):
        load_requests((tmp_path / "file",), "servegen", Window(), [])
    (tmp_path / "file").write_text("hello\n")
    with pytest.raises(Exception, match="begins like no trace that is known"):
        format_of(tmp_path / "file")


def test_a_window_of_a_trace() -> None:
    path = (DATA / "mooncake_conversation.jsonl",)
    every = list(load_requests(path, "mooncake", Window(), []))
    assert len(every) == 200
    some = list(load_requests(path, "mooncake", Window(start=30, seconds=20), []))
    inside = [one for one in every if 30 <= one.traffic.arrival < 50]
    assert [one.traffic.arrival + 30 for one in some] == [one.traffic.arrival for one in inside]
    assert list(load_requests(path, "mooncake", Window(requests=3), [])) == every[:3]
    timed = list(load_requests(path, "mooncake", Window(rate=50.0), []))
    arrivals = [one.traffic.arrival for one in timed]
    assert arrivals == sorted(arrivals) and arrivals[-1] == pytest.approx(199 / 50, rel=0.3)
    assert arrivals != [
        one.traffic.arrival for one in load_requests(path, "mooncake", Window(rate=50.0, seed=1), [])
    ]
    servegen = (DATA / "servegen_image_client20.trace.csv",)
    drawn = list(load_requests(servegen, "servegen", Window(start=7200, seconds=600), []))
    assert 500 < len(drawn) < 3000 and all(one.traffic.images for one in drawn)
    assert drawn[0].traffic.arrival >= 0 and drawn[-1].traffic.arrival < 600


def test_scaling_leaves_answers_and_pictures_as_they_are() -> None:
    request = plain(8.0, 1000, 300, images=(40,), leaves=Leaving(0, 4.0), stalls=(Stall(1, 2.0),))
    small = request.scaled(10, 0.5, 200)
    assert small.traffic == TrafficRequest(4.0, 96 + 40, 200, images=(40,))
    assert small.leaves == Leaving(0, 2.0) and small.stalls == (Stall(1, 1.0),)
    assert request.scaled(1, 1.0, None) == request


def name_of(one: RecordedRequest) -> str:
    return (one.arrival.prompt_digest + one.arrival.salt).hex()


@pytest.mark.parametrize("seed", [0, 1])
def test_luces_own_traces(seed: int, tmp_path: Path) -> None:
    serve_crowd(seed, 40, depth=1, trace=tmp_path)
    paths, warnings = trace_paths([tmp_path]), list[str]()
    found = list(recorded_load(paths, warnings))
    recorded = {one.arrival.order: one for one in recorded_requests(read_trace(paths))}
    first = [one for one in recorded.values() if not one.arrival.choice]
    assert len(found) == len(first) > 25
    arrivals = [one.traffic.arrival for one in found]
    assert arrivals == sorted(arrivals) and arrivals[0] == 0
    zero = min(one.arrival.arrived for one in first)
    by_time = {(round(one.arrival.arrived - zero, 9), name_of(one)): one for one in first}
    cancelled = 0
    for request in found:
        one = by_time[round(request.traffic.arrival, 9), request.name]
        assert request.traffic.prompt_tokens == one.arrival.prompt_tokens
        assert request.traffic.images == tuple(picture.tokens for picture in one.arrival.pictures)
        assert request.choices == one.arrival.n
        if one.end == "cancelled":
            cancelled += request.leaves is not None
        else:
            assert request.leaves is None
    assert cancelled > 0, "nobody left"
    assert math.isclose(max(arrivals), max(by_time)[0])
