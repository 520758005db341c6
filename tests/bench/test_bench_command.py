"""`luce bench` as a whole, on the bundled model and on random weights in its shape."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from luce.bench.report import read_report
from luce.cli import main as command
from luce.compute.host_device import HostDevice
from luce.errors import DeviceError

SMALL = [
    *("--rows", "1,2", "--contexts", "70", "--prompts", "130", "--mixed", "32", "--pictures", "24"),
    *("--tokens", "16", "--seconds", "0.05", "--runs", "1"),
]


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        command.main(["bench", *arguments])
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_everything_is_measured_beside_its_limit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "report.json"
    assert run(*SMALL, "--json", str(path)) == 0
    report = read_report(path)
    assert [point.name for point in report.points] == [
        "decode, 1 row, context 70",
        "decode, 2 rows, context 70",
        "prefill, 130 tokens, 64 a step",
        "mixed step, 2 rows at context 70, 32 prompt rows",
        "picture of 25 tokens encoded",
        "HTTP: 1 text, prompts of 70, 16 tokens each",
        "HTTP: 2 texts, prompts of 70, 16 tokens each",
        "HTTP: 1 request with a picture of 25 tokens, 16 tokens each",
        "HTTP: 4 requests with a picture of 25 tokens, 16 tokens each",
        "HTTP: longest pause of 1 texts beside 8 new pictures of 25 tokens",
    ]
    for point in report.points:
        assert point.value > 0 and len(point.runs) == 1, point.name
        assert (point.share is None) == ("pause" in point.name), point.name
    assert report.speeds.bytes_per_second > 1e8 and report.speeds.flops_per_second > 1e8
    assert report.weights == "F32" and report.weight_bytes == pytest.approx(34.7e6, rel=0.01)
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("luce-demo, weights in F32") and "measured now" in out[1]
    assert [line.split("  ")[0] for line in out[2:]] == [point.name for point in report.points]


def test_a_part_of_it_on_random_weights(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    assert (
        run(
            "run", "--synthetic", "luce-demo", *SMALL, "--only", "decode", "--depth", "2", "--json", str(path)
        )
        == 0
    )
    content = json.loads(path.read_text())
    assert content["shape"] == "luce-demo" and content["options"]["depth"] == 2
    assert [point["name"] for point in content["points"]] == [
        "decode, 1 row, context 70",
        "decode, 2 rows, context 70",
    ]
    assert content["points"][0]["details"]["recurrent_limit"] < content["points"][0]["limit"]


def test_a_run_that_breaks_off_leaves_what_was_measured_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_answer(*_: object) -> None:
        raise DeviceError("a request of the benchmark got no answer: planted")

    monkeypatch.setattr("luce.bench.running.http_points", no_answer)
    path = tmp_path / "report.json"
    assert run(*SMALL, "--json", str(path)) != 0
    names = [point.name for point in read_report(path).points]
    assert names[0] == "decode, 1 row, context 70" and names[-1] == "picture of 25 tokens encoded"


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (["--rows", "1,x"], "Invalid value \"1,x\" for --rows. '1,x': write whole numbers"),
        (["--rows", " , "], "--rows: must not be empty"),
        (["--contexts", "900000"], "--contexts: with what is measured behind them sequences come to have"),
        (["--synthetic", "luce-demo", "model"], "--synthetic: is instead of a MODEL"),
        (["--format", "q4_k"], "--format: is of random weights; give --synthetic, too"),
        (
            ["--synthetic", "luce-demo", "--format", "q4_k", "--device", "cpu"],
            "--format: the CPU engine holds",
        ),
        (["--device", "tpu"], "--device: 'tpu' is no device"),
        (["--json", "/nowhere/at/all"], "--json: /nowhere/at/all: No such file or directory"),
    ],
)
def test_flags_that_cannot_be_are_refused_first(
    arguments: list[str], fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments) == 2
    said = capsys.readouterr().err
    assert said.startswith("luce: ") and fault in said and said.count("\n") == 1


def test_what_does_not_fit_onto_a_gpu_is_refused_in_advance(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks for every sequence at its longest count, not for one alone; flags are those of this command."""
    for where in ("luce.cli.bench", "luce.engines.synthetic_model"):
        monkeypatch.setattr(
            f"{where}.choose_device", lambda wanted, operands=None: None if wanted == "cpu" else HostDevice()
        )
    sizes = ("--rows", "64", "--contexts", "32768", "--only", "decode")
    assert run("--synthetic", "qwen3.5-0.8b", "--device", "cuda:0", *sizes) == 2
    said = capsys.readouterr().err
    assert (
        "65 slots of 32963 tokens need " in said
        and " free on the device; fewer --rows or smaller --contexts" in said
    )
    assert "--slots" not in said


def test_what_does_not_fit_into_memory_says_which_flags_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--synthetic", "qwen3.5-27b", "--rows", "64", "--only", "decode") == 1
    assert "fewer --rows or smaller --contexts need less" in capsys.readouterr().err
