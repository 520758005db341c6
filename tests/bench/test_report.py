"""Points, reports and their comparison."""

from __future__ import annotations

import json
from pathlib import Path

import attrs
import pytest

from luce.bench.limits import Speeds
from luce.bench.points import Point, of_runs
from luce.bench.report import Report, compare, comparison_lines, head_lines, point_line, read_report
from luce.cli import main as command
from luce.errors import ConfigError


def report(*points: Point) -> Report:
    return Report(
        when="2026-11-30T00:00:00+00:00",
        luce="0.1.0",
        machine="m",
        device="d",
        model="demo",
        shape=None,
        weights="F32",
        weight_bytes=34.7e6,
        speeds=Speeds(2e10, 1e11),
        options={"depth": 1},
        points=list(points),
    )


DECODE = of_runs("decode, 1 row", "tok/s", [50.0, 40.0, 45.0], 90.0, "bytes", steps=64)
PICTURE = of_runs("picture", "ms", [20.0], 5.0, "FLOPs")
PAUSE = of_runs("pause", "ms", [30.0, 33.0], None)


def test_a_point_is_the_median_and_its_share_of_the_limit() -> None:
    assert DECODE.value == 45.0 and DECODE.share == 0.5 and DECODE.spread == pytest.approx(10 / 45)
    assert PICTURE.share == 0.25  # less is better
    assert PAUSE.share is None and PAUSE.value == 31.5


def test_lines_name_the_limit_and_what_it_comes_from() -> None:
    assert point_line(DECODE).endswith(" 50.0 % of the limit, 90.0 by bytes  (runs differ by 22 %)")
    assert "25.0 % of the limit, 5 by FLOPs" in point_line(PICTURE) and "differ" not in point_line(PICTURE)
    assert "limit" not in point_line(PAUSE)
    assert "20.0 GB/s" in head_lines(report())[1] and "0.1 TFLOP/s" in head_lines(report())[1]


def test_what_a_gpu_gave_is_told_beside_the_plan() -> None:
    made = report()
    assert len(head_lines(made)) == 2
    made.memory = {"planned": 20_000_000_000, "taken": 20_050_000_000}
    assert head_lines(made)[2] == ("takes 20.05 GB of the GPU's memory, +0.25 % beside the 20 planned")


def test_a_report_comes_back_from_its_json(tmp_path: Path) -> None:
    made = report(DECODE, PICTURE, PAUSE)
    path = tmp_path / "r.json"
    path.write_text(made.json())
    assert read_report(path) == made
    assert json.loads(path.read_text())["points"][0]["share"] == 0.5


def test_a_comparison_says_how_much_faster_the_second_is(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    faster = attrs.evolve(DECODE, value=90.0), attrs.evolve(PICTURE, value=10.0)
    one, other = report(DECODE, PICTURE, PAUSE), report(*faster)
    assert [(line.name, line.gain) for line in compare(one, other)] == [
        ("decode, 1 row", 2.0),
        ("picture", 2.0),
    ]
    other.weights, other.speeds = "Q4_K", Speeds(4e10, 1e11)
    lines = list(comparison_lines(one, other))
    assert lines[:2] == ["weights differs: F32 | Q4_K", "copying 20.0 | 40.0 GB/s"]
    assert [line.split()[-2:] for line in lines[3:5]] == [["+100.0", "%"], ["+100.0", "%"]]
    assert lines[5].endswith("only in the first")
    paths = [tmp_path / "a", tmp_path / "b"]
    for path, made in zip(paths, (one, other), strict=True):
        path.write_text(made.json())
    with pytest.raises(SystemExit) as ended:
        command.main(["bench", "compare", *map(str, paths)])
    assert ended.value.code == 0 and capsys.readouterr().out.splitlines() == lines


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ("[1]", "is no report of luce bench --json"),
        ("{", "Expecting property name"),
        ('{"luce_bench": 9}', "luce_bench is 9; this luce reads 1, run luce bench again"),
        ('{"luce_bench": 1, "points": [{}]}', "is no whole report"),
        ('{"luce_bench": 1, "points": [], "speeds": 3}', "is no whole report"),
    ],
)
def test_what_is_no_report_is_refused_by_name(tmp_path: Path, content: str, fault: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match=fault) as refused:
        read_report(path)
    assert str(path) in str(refused.value)
