"""Requests that come together: their answers end together sooner when their prompts are computed before the first."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import attrs
import pytest

from luce.engines.fake.engine import fake_capabilities
from luce.engines.fake.times import Times
from luce.scheduling import plan as policy
from luce.scheduling.step_pace import GATHER_SECONDS
from tests.sim.simulator import Client, Faults, Report, check_results, simulate
from tests.sim.test_mixed_traffic import shown, text

TIMES = Times(step=0.006, row=90e-6, piece=0.011, picture=0.015)
"""About those of a model of 27B on a large GPU."""
OPTIONS: dict[str, Any] = {"park_bytes": 0, "image_bytes": 0, "prefill_budget": 1024, "step_seconds": 0.04}
PROMPT = 1000
TOKENS = 64


def serve(clients: list[Client], depth: int, prefix_bytes: int) -> Report:
    shape = fake_capabilities(num_slots=10, num_blocks=2000, max_context=4000)
    first = text("first", 4, rows=PROMPT)  # something is measured
    report = simulate(
        3, [first, *clients], shape, TIMES, Faults(), depth=depth, prefix_bytes=prefix_bytes, **OPTIONS
    )
    assert check_results(report.results, Faults()) == 1 + len(clients)
    return attrs.evolve(report, results=report.results[1:])


def firsts(report: Report) -> list[float]:
    """Seconds from each question to its first token."""
    return [result.times[0] - result.client.arrival for result in report.results]


def whole(report: Report) -> float:
    """Seconds from the first question to the last answer's end."""
    return max(r.times[-1] for r in report.results) - min(r.client.arrival for r in report.results)


def one_by_one(chunks: Any, *_: Any) -> Any:
    return chunks


@pytest.mark.unrecorded
@pytest.mark.parametrize("prefix_bytes", [0, 1 << 30])
@pytest.mark.parametrize("depth", [1, 2])
def test_four_at_once_end_sooner_and_begin_no_later_on_average(
    depth: int, prefix_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients = [text(f"text {number}", TOKENS, at=1.0, rows=PROMPT) for number in range(4)]
    together = serve(clients, depth, prefix_bytes)
    monkeypatch.setattr(policy, "gathered", one_by_one)
    single = serve(clients, depth, prefix_bytes)
    assert max(firsts(together)) - min(firsts(together)) < 0.01
    assert max(firsts(single)) - min(firsts(single)) > 0.2, "the trap is set"
    assert whole(together) < 0.85 * whole(single)
    assert sum(firsts(together)) < 1.1 * sum(firsts(single))


@pytest.mark.unrecorded
@pytest.mark.parametrize("depth", [1, 2])
def test_pictures_too(depth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    clients = [shown(f"picture {number}", 1, TOKENS, at=1.0) for number in range(4)]
    together = serve(clients, depth, 1 << 30)
    monkeypatch.setattr(policy, "gathered", one_by_one)
    single = serve(clients, depth, 1 << 30)
    assert whole(together) < whole(single)
    assert set(together.pictures.values()) == {1}


def test_a_crowd_does_not_wait_for_ever() -> None:
    """Questions that keep coming hold nobody's first token up for longer than a second and a step."""
    clients = [text(f"text {number}", 4, at=1.0 + 0.09 * number, rows=PROMPT) for number in range(30)]
    report = serve(clients, 1, 0)
    waited = firsts(report)
    print(waited)
    began = sorted(result.times[0] for result in report.results)
    gaps = [after - before for before, after in pairwise([1.0, *began])]
    assert max(gaps) > 0.5, "the trap is set: they wait for one another"
    assert max(gaps) <= GATHER_SECONDS + 0.15


def test_a_short_question_does_not_wait_for_a_long_one() -> None:
    clients = [text("short", 4, at=1.0, rows=50), text("long", 4, at=1.0, rows=3900)]
    short, long = firsts(serve(clients, 1, 0))
    assert short < 0.3 < long


@pytest.mark.parametrize("depth", [1, 2])
def test_nobody_waits_beside_an_answer(depth: int) -> None:
    """The stream's rows go with every piece, so waiting would make no prompt faster."""
    clients = [text("stream", 400), *[text(f"text {number}", 4, at=1.0, rows=500) for number in range(4)]]
    began = sorted(firsts(serve(clients, depth, 0))[1:])
    assert all(after - before > 0.05 for before, after in pairwise(began))
