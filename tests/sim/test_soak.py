"""Thousands of requests with everything that can go wrong, at once: whatever happens, the invariants hold.

What is checked at every step is in `watch.py`; that nothing is left behind, in the simulator.
"""

from __future__ import annotations

import pytest

from luce.errors import RequestError
from tests.sim.crowd import BROKEN, CALM, FAULTY, serve_crowd
from tests.sim.simulator import Report, check_results

# I13: a step's results (chunk.done and token), what ends a request early (retired and dropped), a stall and its end,
# a time limit that runs out.
LONGEST = 2 + 2 + 2 + 1

SEEDS = [(11, 1), (7, 2), (12, 1), (13, 2)]
INDEPENDENT = 50_000
"""Steps of the traces in all that python-statemachine is asked about, a third of a millisecond each."""


def check(report: Report, count: int) -> None:
    assert check_results(report.results, FAULTY, every=max(1, count // 1000)) >= 500
    assert report.longest["request"] <= LONGEST
    assert armed(report) == set()


def armed(report: Report) -> set[str]:
    """What did not come up, so that nothing is shown about it."""
    events, stats, metrics = report.events, report.prefixes, report.metrics
    reasons = {
        "too long": any(isinstance(result.refused, RequestError) for result in report.results),
        "full queue": any("queue is full" in str(result.refused) for result in report.results),
        "injected": any("injected" in str(r.end.error) for r in report.results if r.end and r.end.error),
        "waited": events["request queue.expired"],
        "out of time": events["request deadline.expired"],
        "stall": events["request client.full"] and events["request client.drained"],
        "stalled for good": events["request client.timeout"],
        "save": metrics.saves,
        "drop": metrics.drops,
        "copy fails": events["request restore.failed"] and stats.failed_captures,
        "prefix hit": stats.hits,
        "prefix no good": stats.broken,
        "eviction": stats.evictions,
        "picture fails": events["request encode.failed"],
        "cancel": events["request cancel"],
        "choices that share": any(r.cached for r in report.results if r.submission.choice),
        "idle": events["loop plan.empty"],
    }
    return {reason for reason, seen in reasons.items() if not seen}


@pytest.mark.timeout(900)
@pytest.mark.independent(INDEPENDENT // len(SEEDS))
@pytest.mark.parametrize(("seed", "depth"), SEEDS)
def test_soak(seed: int, depth: int) -> None:
    """20,000 requests in all."""
    count = 5_000
    check(serve_crowd(seed, count, depth=depth), count)


@pytest.mark.parametrize("depth", [1, 2])
def test_pictures_that_cannot_be_computed_again(depth: int) -> None:
    """Their requests are promised all their blocks, and never parked (I4, I12; see `watch.py`)."""
    report = serve_crowd(16, 300, depth=depth, images_recomputable=False)
    check_results(report.results, FAULTY)
    assert report.metrics.saves


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("recomputable", [True, False])
def test_pictures_in_staged_passes(recomputable: bool, depth: int) -> None:
    shape = {"whole_image_blocks": True, "num_layers": 5, "slice_layers": 2, "min_staged_rows": 2}
    report = serve_crowd(24, 300, depth=depth, images_recomputable=recomputable, **shape)
    check_results(report.results, FAULTY)
    assert report.metrics.passes and report.metrics.shared_passes
    assert report.events["request slice.done"] > 2 * report.events["request prefix.imported"] > 0
    assert report.metrics.saves and report.prefixes.hits


def test_without_faults_nothing_fails_but_by_the_clock() -> None:
    report = serve_crowd(13, 300, depth=2, faults=CALM)
    check_results(report.results, CALM)
    assert BROKEN & report.pictures.keys()  # those that could not be encoded else
    assert sum(report.pictures.values()) < sum(len(r.client.submission.images) for r in report.results)
