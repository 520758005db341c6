"""The benchmark runner: its list, its refusals, its JSON. Nothing here looks at how fast anything is."""

import importlib
import json
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

import benchmarks.__main__ as runner
from benchmarks.measure import RUNS, Result, quiet_median, seconds_of


@pytest.fixture
def fake_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("benchmarks.fake")
    module.main = lambda: [Result("speed", 12.5, "turns/s", 20.0, quiet_runs=3, goal=10.0)]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "benchmarks.fake", module)
    monkeypatch.setattr(runner, "BENCHMARKS", {"fake": "a test", "later": "nothing yet"})
    monkeypatch.setattr(runner, "present", lambda name: name == "fake")


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["benchmarks", *arguments])
    return runner.main()


@pytest.mark.usefixtures("fake_benchmark")
def test_table_and_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert call(monkeypatch, "--json", str(tmp_path / "out.json")) == 0
    shown = capsys.readouterr().out
    assert "12.5 turns/s" in shown
    assert "goal 10" in shown
    assert "only 3 of 5 runs were quiet" in shown
    written = json.loads((tmp_path / "out.json").read_text())
    assert written["figures"]["fake"][0]["value"] == 12.5


@pytest.mark.usefixtures("fake_benchmark")
def test_list_and_refusals(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(monkeypatch, "--list") == 0
    assert "later" in capsys.readouterr().out
    for arguments, message in ((["nonsense"], "no benchmark nonsense"), (["later"], "not written yet")):
        with pytest.raises(SystemExit):
            call(monkeypatch, *arguments)
        assert message in capsys.readouterr().err


def test_all_listed_benchmarks_have_a_main() -> None:
    for name in runner.BENCHMARKS:
        assert runner.present(name)
        assert callable(importlib.import_module(f"benchmarks.{name}").main)
    assert not runner.present("nonsense")


def test_median_of_five() -> None:
    values = iter(range(1000))
    result = quiet_median("n", "x", lambda: float(next(values)), goal=3.0)
    assert 2.0 <= result.value <= 12.0
    assert 0 <= result.quiet_runs <= RUNS
    assert result.loop_ms > 0
    assert seconds_of(lambda: sum(range(100)), at_least=0.001) > 0


def test_only_what_the_wall_times_counts_others() -> None:
    def run() -> float:
        time.sleep(0.02)  # the system counts CPU time in steps of 10 ms
        return 1.0

    assert quiet_median("n", "x", run).others is None
    result = quiet_median("n", "x", run, wall=True, runs=3)
    assert result.runs == 3
    assert result.quiet_runs <= 3
    assert result.others is not None
    assert result.others >= 0
