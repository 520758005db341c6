"""`luce doctor` on a tiny random model."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
from rich.console import Console

from luce.cli.doctor import alone_and_beside, doctor, examine
from luce.cli.matrix import run_matrix
from luce.demo.matrix.cells import Cell, all_cells
from luce.demo.matrix.covering import covering_cells
from luce.demo.matrix.running import Bench
from luce.engines.load_model import LoadOptions, OpenedModel, load_engine, open_model
from luce.errors import ConfigError, DeviceError


def test_doctor_finds_this_machine_good(folder: Path) -> None:
    findings = {finding.name: finding for finding in examine(folder)}
    assert all(finding.good for finding in findings.values())
    assert "threads=1" in findings["device"].text
    assert "the same tokens and log-probabilities alone, and together" in findings["exactness"].text


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


CELL = "hot-64-1-saved-text-steady"


def test_doctor_runs_one_cell_of_the_matrix(capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor(matrix=True, cell=CELL) == 0
    shown = capsys.readouterr().out
    assert "1 of 1 cells" in shown and "1 run, 1 with the same bits as alone" in shown
    assert "1 hits with" in shown and "2 saved, 0 dropped" in shown


def test_the_matrix_runs_where_and_on_what_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The device and the synthetic model reach what opens the models of its cells."""
    asked: list[tuple[str, LoadOptions]] = []

    def refused(shape: str, options: LoadOptions, **_: object) -> OpenedModel:
        asked.append((shape, options))
        raise DeviceError("enough")

    monkeypatch.setattr("luce.demo.matrix.running.open_synthetic", refused)
    with pytest.raises(DeviceError, match="enough"):
        run_matrix([], Console(), partial(Bench, device="cuda:1", shape="qwen3.5-0.8b"))
    ((shape, options),) = asked
    assert (shape, options.device, options.slots) == ("qwen3.5-0.8b", "cuda:1", 1)


def test_the_matrix_runs_on_random_weights(capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor(matrix=True, cell=CELL, synthetic="luce-demo") == 0
    assert "1 run, 1 with the same bits as alone" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "cells"),
    [
        ({}, None),
        ({"matrix": True}, all_cells()),
        ({"matrix": True, "sample": True}, covering_cells()),
        ({"matrix": True, "pairs": True}, covering_cells(strength=2)),
    ],
    ids=["none", "all", "sample", "pairs"],
)
def test_which_cells_doctor_runs(
    flags: dict[str, Any], cells: list[Cell] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A difference in one of them is exit code 1."""
    ran: list[list[Cell]] = []
    monkeypatch.setattr("luce.cli.doctor.run_matrix", lambda asked, *_: bool(ran.append(asked)))
    assert doctor(**flags) == (0 if cells is None else 1)
    assert ran == ([] if cells is None else [cells])


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"sample": True}, "--sample: says which cells"),
        ({"cell": CELL}, "--cell: says which cells"),
        ({"pairs": True}, "--pairs: says which cells"),
        ({"synthetic": "qwen3.5-0.8b"}, "--synthetic: is what the matrix runs on"),
        ({"matrix": True, "sample": True, "cell": CELL}, "--sample: chooses other cells than --cell"),
        ({"matrix": True, "pairs": True, "sample": True}, "--sample: chooses other cells than --pairs"),
        ({"matrix": True, "cell": "cold-64"}, "--cell: no cell has this name"),
    ],
)
def test_flags_of_the_matrix_that_do_not_go_together(flags: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        doctor(**flags)


def test_the_matrix_asks_the_bundled_model(folder: Path) -> None:
    with pytest.raises(ConfigError, match="--matrix: asks the bundled model; leave MODEL away"):
        doctor(folder, matrix=True)
