"""Prompts that come while answers stream: with a time for steps, streams keep moving."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest

from luce.actors import freeze as freezing
from luce.engines.fake.engine import fake_capabilities
from luce.engines.fake.times import Times
from luce.replay.redrive.driver import drive
from luce.replay.redrive.script import script_of
from luce.trace.reader import FileStart
from tests.sim.simulator import Client, Faults, Report, check_results, simulate
from tests.sim.test_mixed_traffic import longest_pause, shown, text
from tests.trace.recording import items_of

TIMES = Times(step=0.010, row=80e-6, picture=0.015)
OPTIONS: dict[str, Any] = {"park_bytes": 0, "prefix_bytes": 0, "image_bytes": 0, "prefill_budget": 2048}


def crowd() -> list[Client]:
    """Two streams, and eight long prompts that come once they stream, half of them with pictures."""
    late = [text(f"long {number}", 4, at=1.0, rows=1000) for number in range(4)]
    pictures = [shown(f"picture {number}", 8, 4, at=1.0) for number in range(4)]
    return [text("stream a", 400), text("stream b", 400), *late, *pictures]


def serve(depth: int, trace: Path | None = None, **changes: Any) -> Report:
    shape = fake_capabilities(num_slots=10, num_blocks=2000, max_context=2000)
    options = OPTIONS | {"depth": depth} | changes
    report = simulate(3, crowd(), shape, TIMES, Faults(), trace, **options)
    assert check_results(report.results, Faults()) == 10
    return report


@pytest.mark.parametrize("depth", [1, 2])
def test_no_stream_pauses_for_more_than_a_step(depth: int) -> None:
    report = serve(depth, step_seconds=0.04)
    assert 0.03 < report.metrics.longest_mixed <= 0.04
    assert longest_pause(report, "stream a", "stream b") <= depth * 0.04 + 1e-6


def test_the_trap_is_set() -> None:
    assert longest_pause(serve(1), "stream a", "stream b") > 0.1


def test_a_trace_leads_to_the_same_plans(tmp_path: Path) -> None:
    """The measured times that decide are in it."""
    report = serve(2, tmp_path, step_seconds=0.04)
    items = items_of(tmp_path)
    first = items[0]
    assert isinstance(first, FileStart) and first.header.options["step_seconds"] == 0.04
    found = drive(first.header, script_of(items), items)
    assert found.parted is None and found.launches == report.metrics.steps


@pytest.mark.unrecorded
@pytest.mark.parametrize("depth", [1, 2])
def test_steps_with_copies_of_states_are_no_longer_than_others(
    depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What prompts leave for later ones is copied at the beginning of the step behind them, beside others' rows."""

    def longest() -> float:
        shape = fake_capabilities(num_slots=10, num_blocks=2000, max_context=2000)
        # The first ones tell what copies take.
        clients = [text(f"first {number}", 4, at=0.1 * number, rows=400) for number in range(3)]
        clients += [attrs.evolve(client, arrival=client.arrival + 1) for client in crowd()]
        options = OPTIONS | {"depth": depth, "step_seconds": 0.04, "prefix_bytes": 1 << 30}
        times = attrs.evolve(TIMES, work=0.005)
        report = simulate(3, clients, shape, times, Faults(), **options)
        assert check_results(report.results, Faults()) == 13
        return report.metrics.longest_mixed

    assert longest() <= 0.04
    monkeypatch.setattr(freezing, "_captures", lambda _: 0)
    assert longest() > 0.042, "the trap is set"
