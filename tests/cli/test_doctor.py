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
    """The machine is not to blame: its exactness is not spoken of."""
    findings = {finding.name: finding for finding in examine(tmp_path / "none")}
    assert [name for name, finding in findings.items() if not finding.good] == ["model"]
    assert findings["model"].text == f"{tmp_path / 'none'}: does not exist"
    assert "exactness" not in findings


def test_doctor_says_that_a_model_does_not_fit(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without flags that this command does not have."""
    monkeypatch.setattr("luce.engines.load_model.available_bytes", lambda: 1000)
    (found,) = [finding for finding in examine(folder) if not finding.good]
    assert found.name == "model" and found.text.startswith("the self-test of this model needs ")
    assert found.text.endswith(" more than the 1,000 free") and "--" not in found.text


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
