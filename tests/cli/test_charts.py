"""``luce charts``: charts by name and by path, what is said of them, what is refused."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from luce.charts.draw import to_dot
from luce.charts.explorer import reachable
from luce.charts.interpreter import outcomes
from luce.charts.loader import chart_names, chart_path, load_chart
from luce.cli import charts
from luce.cli import main as command
from luce.errors import ChartError

HEAD = '<scxml xmlns="http://www.w3.org/2005/07/scxml" version="1.0" datamodel="luce" name="{}">'
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """`luce charts` in an empty directory: code, output, errors."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            command.main(["charts", *arguments])
        captured = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return ended.value.code, captured.out, captured.err

    return call


def edited(folder: Path, name: str, old: str, new: str) -> str:
    text = chart_path(name).read_text()
    assert old in text, "the trap"
    path = folder / f"{name}.scxml"
    path.write_text(text.replace(old, new))
    return str(path)


def toggles(folder: Path, regions: int) -> str:
    """A chart of 2 ** regions configurations."""
    both = "".join(
        f'<state id="r{i}"><state id="a{i}"><transition event="e{i}" target="b{i}"/></state>'
        f'<state id="b{i}"><transition event="e{i}" target="a{i}"/></state></state>'
        for i in range(regions)
    )
    path = folder / "toggles.scxml"
    path.write_text(f'{HEAD.format("toggles")}<parallel id="p">{both}</parallel></scxml>')
    return str(path)


# check


def test_every_chart_of_luce_is_fine_and_has_a_line(run: Run) -> None:
    code, out, err = run("check")
    assert (code, err) == (0, "")
    lines = dict(line.split(maxsplit=1) for line in out.splitlines())
    assert sorted(lines) == sorted(chart_names())
    for name, said in lines.items():
        chart = load_chart(name)
        assert said.startswith(
            f"{len(chart.states)} states, {len(chart.events)} events, {len(chart.guards)} guard"
        )
    assert "fits RequestGuards" in lines["request"] and "fits ServerGuards" in lines["server"]
    assert f"table of {len(reachable(load_chart('block')))} configurations" in lines["block"]


def test_only_what_is_named_is_told(run: Run) -> None:
    code, out, _ = run("check", "block", "loop")
    assert code == 0
    assert sorted(line.split()[0] for line in out.splitlines()) == ["block", "loop"]


@pytest.mark.parametrize(
    ("name", "old", "new", "said"),
    [
        ("request", 'cond="images_missing"', 'cond="images_mising"', "no @guard method images_mising"),
        (
            "request",
            '"slot.granted"',
            '"slot.grantd"',
            "no transition for slot.granted, which its actor feeds",
        ),
        ("loop", 'event="queue.expired"', 'event="xqueue.expired"', "request.scxml knows no such event"),
        (
            "block",
            'cond="shared"',
            'cond="sharing"',
            "the guards are sharing, duplicate; its owner answers shared, d",
        ),
        ("prefix_entry", 'cond="locked"', 'cond="lockd"', "the guards are lockd; its owner answers locked"),
        ("server", "</scxml>", "", "server.scxml:"),
        ("encoder", "<final", "<finale", "<finale>: this element is not in luce's subset of SCXML"),
    ],
)
def test_a_changed_file_that_does_not_fit_is_one_line(
    run: Run, tmp_path: Path, name: str, old: str, new: str, said: str
) -> None:
    path = edited(tmp_path, name, old, new)
    code, out, err = run("check", path)
    assert (code, out, err.count("\n")) == (1, "", 1), (out, err)
    assert err.startswith(f"luce: {path}:") and said in err


def test_a_changed_chart_is_compared_with_those_that_send_to_it(run: Run, tmp_path: Path) -> None:
    """The loop sends to requests what this one does not know any more; its own actor does not feed it."""
    path = edited(tmp_path, "request", "queue.expired", "queue.ended")
    code, _, err = run("check", path)
    assert code == 1
    assert "luce: loop.scxml: sends 'queue.expired' to #_" in err


def test_changed_charts_are_compared_with_each_other(run: Run, tmp_path: Path) -> None:
    old, new = "image.ready", "image.came"
    encoder = edited(tmp_path, "encoder", old, new)
    assert "image.came" in run("check", encoder)[2]
    request = edited(tmp_path, "request", old, new)
    _, out, err = run("check", encoder, request)
    assert out.startswith("encoder") and out.count("\n") == 1, "the request's actor still feeds image.ready"
    assert err == f"luce: {request}: request.scxml: no transition for image.ready, which its actor feeds\n"


def test_what_is_fine_is_told_beside_all_faults(run: Run, tmp_path: Path) -> None:
    broken = edited(tmp_path, "encoder", "<final", "<finale")
    misfit = edited(tmp_path, "block", 'cond="shared"', 'cond="sharing"')
    code, out, err = run("check", broken, misfit, "prefix_entry", "no/such.scxml")
    assert code == 1
    assert [line.split()[0] for line in out.splitlines()] == ["prefix_entry"]
    assert len(err.splitlines()) == 3
    assert all(
        path in err for path in (broken, misfit, "no/such.scxml: cannot read this statechart: No such file")
    )


@pytest.mark.parametrize("given", [("request", "block"), ("request", "loop", "block"), ()], ids=len)
def test_a_counterpart_that_cannot_be_loaded_is_said(
    run: Run, monkeypatch: pytest.MonkeyPatch, given: tuple[str, ...]
) -> None:
    def load(source: str) -> object:
        if source == "loop":
            raise ChartError("loop.scxml:1: broken")
        return load_chart(source)

    monkeypatch.setattr(charts, "load_chart", load)
    code, out, err = run("check", *given)
    assert (code, err) == (1, "luce: loop.scxml:1: broken\n"), "said once, named or not"
    assert any(line.startswith("block") and "makes a table" in line for line in out.splitlines())
    request = next(line for line in out.splitlines() if line.startswith("request"))
    assert "not compared with its actor" in request and "fits" not in request


def test_a_chart_of_nobody_is_loaded_and_said_to_be(run: Run, tmp_path: Path) -> None:
    assert run("check", toggles(tmp_path, 2)) == (
        0,
        "toggles      7 states, 2 events, 0 guards; no actor of luce runs it\n",
        "",
    )


def test_one_name_twice_is_refused(run: Run, tmp_path: Path) -> None:
    path = edited(tmp_path, "loop", "</scxml>", "</scxml>\n")
    code, out, err = run("check", "loop", path)
    assert (code, out) == (2, "")
    assert err == "luce: CHARTS: two of them are named 'loop'; check them one by one\n"


# explore


@pytest.mark.parametrize("name", chart_names())
def test_every_configuration_and_event_is_listed_once(run: Run, name: str) -> None:
    chart = load_chart(name)
    found = reachable(chart)
    code, out, err = run("explore", name)
    assert (code, err) == (0, "")
    head, *parts = out.split("\n\n")
    assert f"{len(found)} configurations can be reached" in head
    legal_pairs = 0
    for number, (here, part) in enumerate(zip(found, parts, strict=True)):
        first, *rest = part.splitlines()
        assert first.startswith(f"{number}  {', '.join(here.states)}")
        told: dict[str, list[str]] = {"legal": [], "illegal": []}
        for line in rest:
            kind, *events = line.replace(",", "").split()
            if "if" not in events:
                told[kind] = events
        legal = [e for e in sorted(chart.events) if any(o.then is not None for _, o in outcomes(here, e))]
        legal_pairs += len(legal)
        if here.finished:
            assert rest == ["   finished"]
        else:
            assert told["legal"] == legal
            assert told["illegal"] == [event for event in sorted(chart.events) if event not in legal]
    assert (
        f"of {len(found) * len(chart.events)} pairs of configuration and event {legal_pairs} can be legal"
        in head
    )


def test_events_that_guards_refuse_and_choices_are_told(run: Run) -> None:
    _, out, _ = run("explore", "request")
    assert "left at once: arrival, encoding_enter, staging_enter, decoding_enter, ending_mask_enter\n" in out
    staging = out.split("live, phase, staging, staging_chunk, client, flowing\n")[1].split("\n\n")[0]
    assert "   illegal  park.drop if not recomputable\n" in staging + "\n"


def test_what_histories_remember_is_told(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "past.scxml"
    path.write_text(
        f"{HEAD.format('past')}"
        '<state id="on"><history id="last"><transition target="slow"/></history>'
        '<transition event="stop" target="off"/>'
        '<state id="slow"><transition event="faster" target="fast"/></state><state id="fast"/></state>'
        '<state id="off"><transition event="go" target="last"/></state></scxml>'
    )
    _, out, _ = run("explore", str(path))
    for memory in ("slow", "fast"):
        assert f"  off  (last: {memory})\n   legal    go\n" in out


def test_a_state_that_nothing_leaves_is_called_stuck(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "trap.scxml"
    path.write_text(
        f'{HEAD.format("trap")}<state id="a"><transition event="go" target="b"/></state><state id="b"/></scxml>'
    )
    _, out, _ = run("explore", str(path))
    assert out.endswith("1  b\n   legal    nothing: stuck\n   illegal  go\n")


def test_a_chart_too_large_to_explore_is_one_line(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(charts, "MAX_WAYS", 64 * 6)
    path = toggles(tmp_path, 6)
    assert run("explore", path)[0] == 0, "64 configurations of six events are just allowed"
    monkeypatch.setattr(charts, "MAX_WAYS", 64 * 6 - 1)
    code, out, err = run("explore", path)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "toggles: more than 383 ways from one configuration to another, too many to try all" in err


# draw


@pytest.mark.parametrize("name", chart_names())
def test_a_drawing_is_that_of_the_chart(run: Run, name: str, tmp_path: Path) -> None:
    text = to_dot(load_chart(name))
    assert run("draw", name) == (0, text, "")
    said = f"chart.dot: text for Graphviz of the chart {name}\n"
    assert run("draw", str(chart_path(name)), "--out", "chart.dot") == (0, said, "")
    assert (tmp_path / "chart.dot").read_text() == text


def test_active_states_are_filled(run: Run) -> None:
    _, out, _ = run("draw", "loop", "--active", "idle", "--active", "open")
    assert out == to_dot(load_chart("loop"), ("idle", "open")) != to_dot(load_chart("loop"))


@pytest.mark.parametrize(
    ("name", "begins", "what"),
    [
        ("l.svg", b"<?xml", "a picture"),
        ("l.PNG", b"\x89PNG", "a picture"),
        ("l.dot", b"digraph", "text for Graphviz"),
    ],
)
def test_a_picture_is_made_by_how_the_file_is_called(
    run: Run, tmp_path: Path, name: str, begins: bytes, what: str
) -> None:
    if shutil.which("dot") is None:
        pytest.skip("no Graphviz: install it (apt-get install graphviz)")
    assert run("draw", "loop", "--active", "idle", "--out", name) == (
        0,
        f"{name}: {what} of the chart loop\n",
        "",
    )
    assert (tmp_path / name).read_bytes().startswith(begins)


def test_a_picture_needs_graphviz(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    code, _, err = run("draw", "loop", "--out", "l.svg")
    assert code == 1 and err.startswith("luce: Graphviz is needed for a picture: install it")
    assert not (tmp_path / "l.svg").exists()


def test_a_chart_is_not_written_over(run: Run, tmp_path: Path) -> None:
    path = edited(tmp_path, "loop", "</scxml>", "</scxml>\n")
    before = Path(path).read_bytes()
    code, _, err = run("draw", path, "--out", path)
    assert (code, err) == (2, f"luce: --out: {path} is the chart; name another file to write\n")
    assert Path(path).read_bytes() == before


# Errors and flags


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (
            ["explore", "lop"],
            2,
            "CHART: luce has no chart 'lop'; did you mean loop? There are block, encoder, loop, ",
        ),
        (["draw", "zzz"], 2, "CHART: luce has no chart 'zzz'. There are block, "),
        (["check", "loop", "lop"], 2, "luce has no chart 'lop'; did you mean loop?"),
        (["explore", ""], 2, "Must not be empty"),
        (["check", ""], 2, "Must not be empty"),
        (["explore", "loop", "request"], 2, "unexpected argument 'request'"),
        (["explore", "./loop"], 1, "loop: cannot read this statechart: No such file or directory"),
        (["explore", "/"], 1, "/: cannot read this statechart: Is a directory"),
        (["explore", "a\0.b"], 1, "cannot read this statechart: embedded null byte"),
        (["draw", "/dev/zero"], 1, "/dev/zero:1: more than 262144 bytes"),
        (["draw", "loop", "--active", "idel"], 2, "--active: loop has no state 'idel'; did you mean idle?"),
        (["draw", "loop", "--active", ""], 2, "--active. Must not be empty"),
        (["draw", "loop", "--out", ""], 2, "--out: the path is empty"),
        (
            ["draw", "loop", "--out", "/no/such/folder/x"],
            2,
            "--out: /no/such/folder/x: No such file or directory",
        ),
        (["draw", "loop", "--format", "svg"], 2, "--format"),
        (["check", "--out", "x"], 2, "--out"),
        (["paint"], 2, 'Unknown command "paint"'),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_errors_are_one_line(run: Run, arguments: list[str], code: int, said: str) -> None:
    found, out, err = run(*arguments)
    assert (found, out, err.count("\n")) == (code, "", 1), (out, err)
    assert err.startswith("luce: ") and said in err


def test_without_a_part_the_parts_are_listed(run: Run) -> None:
    code, out, _ = run()
    assert code == 0
    assert all(part in out for part in ("check", "explore", "draw"))


def test_flags_come_from_a_table_of_the_part_and_from_the_environment(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "luce.toml"
    file.write_text(
        '[serve]\nslots = 2\n[charts.draw]\nactive = ["idle"]\nout = "of-file.dot"\n[charts.check]\n'
    )
    assert run("draw", "loop", "--config", str(file))[0] == 0
    assert (tmp_path / "of-file.dot").read_text() == to_dot(load_chart("loop"), ("idle",))
    assert run("check", "loop", "--config", str(file))[0] == 0
    monkeypatch.setenv("LUCE_OUT", "of-environment.dot")
    assert run("draw", "loop", "--config", str(file))[0] == 0
    assert (tmp_path / "of-environment.dot").exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[charts.drw]\n", "the table [charts.drw] is of no command; did you mean [charts.draw]?"),
        (
            '[charts]\nout = "x"\n',
            "the key 'out' stands in [charts], which is no command's table; put it into one of [ch",
        ),
        ("charts = 3\n", "'charts' must be a table, [charts]"),
        ("[charts]\ndraw = 3\n", "'charts.draw' must be a table, [charts.draw]"),
        ("[charts.draw]\nouts = 1\n", "[charts.draw] has no key 'outs'; did you mean out?"),
        ('[charts.draw]\nconfig = "x"\n', "[charts.draw] config: a file cannot name another one"),
        ("[chart]\n", "the table [chart] is of no command; did you mean [cha"),
    ],
)
def test_nothing_in_the_file_is_ignored(run: Run, tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "luce.toml"
    file.write_text(text)
    code, out, err = run("draw", "loop", "--config", str(file))
    assert (code, out, err.count("\n")) == (2, "", 1), (out, err)
    assert said in err and str(file) in err


def test_the_page_shows_what_is_printed(run: Run) -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "read-the-charts.md").read_text()
    _, out, _ = run("explore", "block")
    assert "\n".join(out.splitlines()[:8]) in page
