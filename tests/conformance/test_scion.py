"""Every case of the SCION/W3C suite that needs no data model must pass. See `scion.py` for what is left out."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.conformance.scion import NotForUs, cases, load_case, run_case
from tests.fetch import require

EXPECTED_CASES = 316
EXPECTED_RUN = 103


@pytest.fixture
def suite() -> Path:
    return require("@scion-scxml/test-framework")


def test_every_case_without_a_data_model_passes(suite: Path) -> None:
    left_out: Counter[str] = Counter()
    failures: list[str] = []
    passed = 0
    for path in cases(suite):
        try:
            chart, script = load_case(path)
        except NotForUs as reason:
            left_out[str(reason)] += 1
            continue
        try:
            run_case(chart, script)
        except AssertionError as error:
            failures.append(f"{path.parent.name}/{path.name}: {error}")
        else:
            passed += 1
    assert not failures, failures
    assert passed == EXPECTED_RUN
    assert passed + left_out.total() == EXPECTED_CASES
    print(f"\n{passed} cases passed, {left_out.total()} left out: {dict(left_out.most_common())}")


def test_the_harness_can_fail(suite: Path) -> None:
    """A wrong expectation must be noticed, in the initial configuration and after an event."""
    path = next(p for p in cases(suite) if p.name == "history0.scxml")
    chart, script = load_case(path)
    with pytest.raises(AssertionError):
        run_case(chart, {**script, "initialConfiguration": ["b"]})
    chart, script = load_case(path)
    events = [{"event": {"name": "t1"}, "nextConfiguration": ["b1"]}]
    with pytest.raises(AssertionError):
        run_case(chart, {**script, "events": events})
