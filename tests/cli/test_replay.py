"""``luce replay``: what is said of a trace, exit codes, and what is refused."""

from __future__ import annotations

import io
import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from luce.cli import main as command
from luce.trace.events import EventRecord
from luce.trace.files import Limits
from luce.trace.frames import MAGIC, frames
from luce.trace.reader import read_trace, trace_paths
from tests.sim import simulator
from tests.sim.crowd import serve_crowd
from tests.trace.recording import StepRecorder, items_of, written

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Code, output, errors."""

    def call(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            command.main(["replay", *map(str, arguments)])
        output, errors = capsys.readouterr()
        return int(ended.value.code or 0), output, errors

    return call


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Of two crowds."""
    paths = tmp_path_factory.mktemp("one"), tmp_path_factory.mktemp("other")
    for seed, path in enumerate(paths):
        serve_crowd(seed, 15, depth=1, trace=path)
    return paths


def test_check(run: Run, traces: tuple[Path, Path]) -> None:
    code, output, errors = run("check", *traces)
    count = sum(isinstance(item, EventRecord) for item in read_trace(trace_paths(traces)))
    assert (code, errors) == (0, "")
    assert output.startswith(f"{count:,} records follow from their charts: ") and " request, " in output
    code, output, _ = run("check", traces[0], "--independent", "--sample", 50)
    assert code == 0 and "python-statemachine agrees on " in output


def test_check_shows_the_first_record_that_does_not_follow(
    run: Run, traces: tuple[Path, Path], tmp_path: Path
) -> None:
    records = [item for item in items_of(traces[0]) if isinstance(item, EventRecord)]
    start = items_of(traces[0])[0]
    place = [place for place, one in enumerate(records) if one.id == "r3"][4]
    bad = records[place]._replace(event="encode.failed")
    path = written(
        tmp_path,
        [*records[:place], bad, *records[place + 1 :]],
        snapshot=start.snapshot,  # type: ignore[union-attr]
    )
    code, output, _ = run("check", path)
    assert code == 1
    lines = output.splitlines()
    assert lines[0].startswith(f"record {bad.seq} does not follow: encode.failed ")
    assert [line for line in lines if line.startswith(">")] == [
        line for line in lines if "encode.failed" in line
    ][1:]
    assert len(lines) > 6 and all(" r3 " in line for line in lines[1:])


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Of one run."""
    folder = tmp_path_factory.mktemp("files")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            simulator, "StepRecorder", lambda path: StepRecorder(path, Limits(1 << 30, 6000), every=300)
        )
        serve_crowd(4, 80, depth=1, trace=folder)
    return trace_paths([folder])


def without_last_frames(path: Path, to: Path, count: int) -> Path:
    """A file that ends at a frame's border, as if nothing more had been written."""
    data = path.read_bytes()
    ends = [one.offset for one in frames(io.BytesIO(data), "")]  # type: ignore[union-attr]
    to.write_bytes(data[: ends[-count]])
    return to


def test_records_that_are_missing_between_files(run: Run, files: list[Path], tmp_path: Path) -> None:
    code, _, errors = run("check", *files)
    assert (code, errors) == (0, "") and len(files) > 3
    cut = without_last_frames(files[0], tmp_path / files[0].name, 1)
    for given in ([files[0], *files[2:]], [cut, *files[1:]]):
        code, _, errors = run("check", *given)
        assert code == 1 and str(given[1]) in errors
        assert re.search(
            r"records \d+ to \d+ of its run are missing before it: a file, or the end of one", errors
        )
        # Who only looks gets what is there, and is told.
        folder = tmp_path / f"without-{given[0].parent == tmp_path}"
        folder.mkdir()
        for one in given:
            shutil.copy(one, folder)
        for arguments in (("show", folder), ("export", folder, "--csv", tmp_path / "csv")):
            code, _, errors = run(*arguments)
            assert code == 0 and "of its run are missing before it" in errors


def test_files_twice_or_backwards(run: Run, files: list[Path]) -> None:
    for given in ([files[0], files[0]], [files[1], files[0]], [*files, files[1]]):
        code, _, errors = run("check", *given)
        assert code == 1
        assert f"{given[-1]}: it begins with record " in errors
        assert "give each file of a run once, in their order" in errors


def test_a_trace_that_ends_before_its_server(
    run: Run, files: list[Path], traces: tuple[Path, Path], tmp_path: Path
) -> None:
    for command_name, given, whole in (
        ("check", files[:2], files),
        ("check", [traces[0], files[0]], [traces[0], *files]),
        ("run", files[:1], [traces[0]]),
    ):
        code, _, errors = run(command_name, *given)
        assert code == 0 and "the trace does not reach the end of its server" in errors
        code, _, errors = run(command_name, *whole)
        assert (code, errors) == (0, "")
    (path,) = trace_paths([traces[0]])
    cut = without_last_frames(path, tmp_path / "cut.ltrace", 1)
    for command_name in ("check", "run"):
        code, _, errors = run(command_name, cut)
        assert code == 0 and "or the last records are gone" in errors


def test_check_without_python_statemachine(
    run: Run, traces: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "luce.replay.independent", None)
    code, _, errors = run("check", traces[0], "--independent")
    assert code == 2
    assert errors == (
        "luce: --independent: the package for it is not installed; pip install python-statemachine\n"
    )


def test_a_trace_that_breaks_off_and_one_of_other_charts(
    run: Run, traces: tuple[Path, Path], tmp_path: Path
) -> None:
    (source,) = trace_paths([traces[0]])
    cut = tmp_path / "cut.ltrace"
    cut.write_bytes(source.read_bytes()[:-5])
    code, output, errors = run("check", cut)
    assert code == 0 and "records follow" in output
    assert f"luce: {cut}: it breaks off at byte " in errors
    from luce.charts.loader import chart_path

    text = chart_path("loop").read_text().replace("<!--", "<!-- Once.", 1)
    import hashlib

    charts = {
        name: chart_path(name).read_text()
        for name in ("request", "encoder", "server", "block", "prefix_entry")
    }
    charts["loop"] = text
    hashes = {name: hashlib.sha256(one.encode()).hexdigest() for name, one in charts.items()}
    other = written(tmp_path / "other", [], charts=charts, hashes=hashes)
    code, output, errors = run("check", other)
    assert code == 0 and errors.startswith(
        "luce: charts of the trace that are others than this luce's: loop\n"
    )


def test_show(run: Run, traces: tuple[Path, Path], tmp_path: Path) -> None:
    code, output, _ = run("show", traces[0], "--width", 100, "--lanes", 3)
    assert code == 0
    assert "steps, max" in output and "more requests; --lanes shows more" in output
    assert all(len(line) <= 160 for line in output.splitlines())
    code, output, _ = run("show", traces[0], "--request", "r3")
    assert code == 0 and output.splitlines()[0].endswith("live, phase, waiting, queued, client, flowing")
    assert all(" r3 " in line for line in output.splitlines())
    whole = run("show", traces[0], "--request", "r12")
    assert whole[0] == 0 and run("show", traces[0], "--request", "12") == whole, "as a timeline shows it"
    (source,), cut = trace_paths([traces[0]]), tmp_path / "cut.ltrace"
    cut.write_bytes(source.read_bytes()[:-9])
    for flags in ([], ["--request", "r3"]):
        code, _, errors = run("show", cut, *flags)
        assert code == 0 and errors.startswith(f"luce: {cut}: ")


def test_diff(run: Run, traces: tuple[Path, Path]) -> None:
    assert run("diff", traces[0], traces[0]) == (0, "every machine does the same, and so do the plans\n", "")
    code, output, _ = run("diff", *traces, "--most", 2)
    assert (
        code == 1 and output.count(": alike for ") == 2 and output.endswith("and more; --most shows them\n")
    )


def test_export(run: Run, traces: tuple[Path, Path], tmp_path: Path) -> None:
    chrome, table = tmp_path / "out.json", tmp_path / "out.csv"
    code, output, _ = run("export", traces[0], "--chrome", chrome, "--csv", table)
    assert code == 0
    count = len(json.loads(chrome.read_text())["traceEvents"])
    assert output == f"{chrome}: {count:,} events\n{table}: {len(items_of(traces[0])) - 1:,} rows\n"


def test_refusals(run: Run, traces: tuple[Path, Path], tmp_path: Path) -> None:
    foreign = tmp_path / "foreign"
    foreign.write_text("hello")
    empty = tmp_path / "empty.ltrace"
    empty.write_bytes(MAGIC)
    nothing = written(tmp_path / "nothing", [])
    (source,) = trace_paths([traces[0]])
    for arguments, code, said in (
        (["check", foreign], 1, f"{foreign}: byte 0: this is no trace of luce"),
        (["check", tmp_path / "none"], 1, "none: no such file"),
        (["check", empty], 1, "it breaks off within its header"),
        (["check", ""], 2, "the path is empty"),
        (["check"], 2, "requires an argument"),
        (["show", nothing], 2, "no record is in it"),
        (["show", source, "--request", "2"], 2, "requests end in '2'; give more of the id"),
        (["show", source, "--request", "r999"], 2, "--request: the trace has no request 'r999'"),
        (
            ["show", source, "--start", "2", "--end", "1"],
            2,
            "--end: the window ends at 1.0 s and begins at 2.0 s",
        ),
        (["export", source], 2, "nothing is to be written"),
        (["export", source, "--csv", source], 2, "is the trace itself"),
        (["export", source, "--csv", tmp_path / "no" / "dir"], 2, "--csv: "),
    ):
        ended, _, errors = run(*arguments)
        assert (ended, said in errors) == (code, True), (arguments, errors)
        assert errors.count("\n") == 1
    assert items_of(source), "it is as it was"


def test_serve_flags(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    for arguments, said in (
        (["--trace-content"], "--trace-content: there is no trace for it to go into; give --trace"),
        (["--trace", str(tmp_path / "file")], f"--trace: {tmp_path / 'file'}: File exists"),
    ):
        with pytest.raises(SystemExit) as ended:
            command.main(["serve", str(tmp_path / "no-model"), *arguments])
        assert ended.value.code == 2
        assert said in capsys.readouterr().err
