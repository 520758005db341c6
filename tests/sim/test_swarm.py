"""Servers of every size and temper, drawn from a seed, before the same kind of crowd: what one set of options never
shows, another does."""

from __future__ import annotations

import random
from typing import Any

import pytest

from luce.engines.fake.times import Times
from tests.sim.crowd import BROKEN, CALM, FAULTY, TIMES, crowd, small
from tests.sim.files import EXHAUSTIVE
from tests.sim.simulator import Faults, check_results, simulate

SLOW_COPIES = Times(step=0.001, row=1e-5, patch=0.02, work=0.05, saved_row=1e-3, restored_row=1e-3)
WILD = Faults(rows=1.0, steps=0.5, copies=5.0, pictures=BROKEN)
SEEDS = 200 if EXHAUSTIVE else 10
"""How many servers."""


def draw(rng: random.Random) -> tuple[dict[str, Any], dict[str, Any], Times, Faults]:
    """Of the engine, of the server; how long things take and how often they fail."""
    block_size = rng.choice([1, 2, 4, 8, 16])
    rows = rng.choice([210, 300, 500, 2000])  # one request has 200 at most
    engine = {
        "num_slots": rng.choice([1, 2, 4, 8, 16]),
        "block_size": block_size,
        "num_blocks": -(-rows // block_size),
        "recomputable": rng.random() < 0.85,
        "images_recomputable": rng.random() < 0.7,
        "parking": rng.random() < 0.8,
        "snapshots": rng.random() < 0.85,
    }
    server = {
        "depth": rng.choice([1, 2]),
        "prefill_budget": rng.choice([1, 7, 24, 64, None]),
        "max_queued": rng.choice([0, 4, 24, 200]),
        "queue_timeout": rng.choice([0.3, 1.2, 30.0]),
        "client_timeout": rng.choice([0.1, 1.0]),
        "buffer_limit": rng.choice([1, 2, 6, 1000]),
        "prefix_bytes": rng.choice([0, 150, 900, 6000, 10**6]),
        "park_bytes": rng.choice([0, 160, 500, 10**6]),
        "image_bytes": rng.choice([0, 400, 10**6]),
        "coalesce": rng.choice([0.0, 0.02]),
    }
    times, faults = rng.choice([TIMES, Times(), SLOW_COPIES]), rng.choice([CALM, FAULTY, WILD])
    server["rows_before_picture"] = rng.choice([1, 3, 20])
    return engine, server, times, faults


@pytest.mark.parametrize("seed", range(SEEDS))
def test_swarm(seed: int) -> None:
    engine, server, times, faults = draw(random.Random(seed))
    report = simulate(seed, list(crowd(seed, 60)), small(**engine), times, faults, **server)
    assert check_results(report.results, faults) > 0
    # I13: a step's results, what ends a request early behind them, and a client that stalls or comes back.
    assert report.longest.get("request", 0) <= 2 + 2 + 2
