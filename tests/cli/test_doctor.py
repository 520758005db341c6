"""`luce doctor` on a tiny random model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest

from luce.cli.doctor import alone_and_beside, examine
from luce.engines.load_model import LoadOptions, load_engine, open_model


def test_doctor_finds_this_machine_good(folder: Path) -> None:
    findings = {finding.name: finding for finding in examine(folder)}
    assert all(finding.good for finding in findings.values())
    assert "threads=1" in findings["device"].text


def test_doctor_names_a_model_that_cannot_be_read(tmp_path: Path) -> None:
    findings = {finding.name: finding for finding in examine(tmp_path / "none")}
    assert not findings["exactness"].good
    assert "does not exist" in findings["exactness"].text


def test_self_test_sees_a_difference(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Armed: an engine whose logits depend on the number of lanes in a step is found out."""
    engine = load_engine(open_model(folder, LoadOptions(slots=4, context=128), chat=False))
    try:
        assert alone_and_beside(engine) == []
        real = engine.collect

        def inexact(ticket: Any) -> Any:
            result = real(ticket)
            if len(result.outcomes) < 2:
                return result
            outcomes = [
                attrs.evolve(
                    outcome,
                    tokens=tuple(attrs.evolve(t, logprob=np.nextafter(t.logprob, 0)) for t in outcome.tokens),
                )
                for outcome in result.outcomes
            ]
            return attrs.evolve(result, outcomes=tuple(outcomes))

        monkeypatch.setattr(engine, "collect", inexact)
        assert alone_and_beside(engine)
    finally:
        engine.shutdown()
