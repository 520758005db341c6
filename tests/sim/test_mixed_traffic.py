"""Texts and pictures on a device of DeepSeek's shape: streams keep moving while long image prompts are staged.

Modelled after a production day of a C++ server: a shared pass of 3.6 s in 8 slices, a decode step of 108 ms at 4 lanes,
an encode of 0.5 s a picture on a device of its own, an import of 5 ms. There the longest pause of a text stream was
0.67 s, and 33 s before passes were cut into slices.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest

from luce.engines.fake.engine import deepseek_capabilities
from luce.engines.fake.times import Times
from tests.sim.requests import make_submission, picture_of, prompt_of, text_of
from tests.sim.simulator import Client, Faults, Report, check_results, simulate

TIMES = Times(step=0.060, row=0.012, layer=3.6 / 43, imported=0.005, picture=0.5)
SLICE = 6 * TIMES.layer
OPTIONS: dict[str, Any] = {"park_bytes": 100_000, "prefix_bytes": 0, "image_bytes": 0}
PICTURE_ROWS = 60


def text(name: str, tokens: int, *, at: float = 0.0, rows: int = 12) -> Client:
    prompt = prompt_of(text_of(name, rows), [])
    return Client(at, make_submission(name, prompt, [], tokens, seed=len(name)))


def shown(name: str, pictures: int, tokens: int, *, at: float) -> Client:
    images = [picture_of(f"{name}/{number}", PICTURE_ROWS) for number in range(pictures)]
    prompt = prompt_of(text_of(name, 30), images)
    return Client(at, make_submission(name, prompt, images, tokens, seed=len(name)))


def mixed() -> list[Client]:
    """Two streams that are there from the start, then three requests with one picture and one with eight."""
    return [
        text("stream a", 150),
        text("stream b", 150),
        shown("one", 1, 12, at=1.0),
        shown("two", 1, 12, at=1.0),
        shown("three", 1, 12, at=1.1),
        shown("eight", 8, 12, at=1.2),
    ]


def serve(clients: Sequence[Client], depth: int, seed: int = 3, **changes: Any) -> Report:
    options = OPTIONS | {"depth": depth, "staged_rows": 256}
    shape = {name: changes.pop(name) for name in list(changes) if name not in OPTIONS}
    report = simulate(seed, clients, deepseek_capabilities(**shape), TIMES, **(options | changes))
    assert check_results(report.results, Faults()) == len(clients)
    return report


def longest_pause(report: Report, *names: str) -> float:
    """Between two pieces of these streams."""
    pauses = [
        later - earlier
        for result in report.results
        if result.client.submission.id in names
        for earlier, later in pairwise(result.times)
    ]
    return max(pauses)


@pytest.mark.parametrize("depth", [1, 2])
def test_no_stream_pauses_longer_than_a_slice_and_a_step(depth: int) -> None:
    """I9."""
    report = serve(mixed(), depth)
    step = TIMES.step + 6 * TIMES.row
    pause = longest_pause(report, "stream a", "stream b")
    print(
        f"\ndepth {depth}: longest pause {pause:.3f} s, slice {SLICE:.3f} s, step {step:.3f} s; {report.metrics}"
    )
    assert SLICE < pause <= SLICE + step
    assert report.metrics.passes >= 3 and report.metrics.shared_passes >= 1
    assert report.events["request slice.done"] > 8 * report.metrics.shared_passes
    assert report.events["request prefix.imported"] == 4
    assert set(report.pictures.values()) == {1} and len(report.pictures) == 11


def test_the_trap_is_set() -> None:
    """Passes that are not cut make everybody wait for whole ones."""
    assert longest_pause(serve(mixed(), 1, slice_layers=0), "stream a", "stream b") > 3.6


def test_a_pass_is_not_cut_while_nobody_decodes() -> None:
    """One image request alone: the whole pass in one step."""
    report = serve([shown("one", 1, 4, at=0.0)], 1)
    assert report.events["request slice.done"] == 1
    [result] = report.results
    first = 0.5 + 3.6 + TIMES.step + TIMES.imported + TIMES.step + TIMES.row
    assert result.times[0] == pytest.approx(first, abs=0.05)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("park_bytes", [100_000, 0])
def test_under_pressure_texts_give_way_and_pictures_never(park_bytes: int, depth: int) -> None:
    """Blocks for the image requests are promised to their end; texts that outgrow the rest are saved, or dropped."""
    clients = [
        text("text a", 400, rows=100),
        text("text b", 400, rows=100),
        text("text c", 400, rows=100),
        shown("one", 1, 200, at=2.0),
        shown("two", 2, 200, at=2.0),
    ]
    report = serve(clients, depth, park_bytes=park_bytes, num_blocks=11)
    metrics = report.metrics
    parked = metrics.saves if park_bytes else metrics.drops
    assert parked > 0  # that nobody with pictures is: see `watch.py`
    assert report.count("length") == len(clients)
    assert set(report.pictures.values()) == {1}


@pytest.mark.parametrize("depth", [1, 2])
def test_six_image_requests_on_four_slots(depth: int) -> None:
    """All are answered, and however often the pool is busy each picture is encoded once."""
    clients = [shown(f"image {number}", 1 + number % 3, 20, at=0.1 * number) for number in range(6)]
    report = serve(clients, depth, num_slots=4)
    assert report.count("length") == 6
    assert set(report.pictures.values()) == {1}
    assert len(report.pictures) == sum(len(client.submission.images) for client in clients)
