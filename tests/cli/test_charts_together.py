"""``luce charts explore`` without a chart: requests, step loop and encoder together."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import attrs
import pytest

from luce.charts.loader import chart_path, load_chart
from luce.cli import charts_together
from luce.cli import main as command
from luce.cli.charts import TogetherFlags
from luce.composition.defects import DEFECTS
from luce.composition.scenarios import THREE_REQUESTS, TWO_REQUESTS
from luce.composition.system import System
from luce.composition.verdict import judge

Run = Callable[..., tuple[int, list[str], str]]
SCENARIO = "blocks for one, both get their turn"
TO_PARKED = "pressure, dropped"


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """`luce charts explore`: code, lines of output, errors."""

    def call(*arguments: str) -> tuple[int, list[str], str]:
        with pytest.raises(SystemExit) as ended:
            command.main(["charts", "explore", *arguments])
        captured = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return ended.value.code, captured.out.splitlines(), captured.err

    return call


def changed(folder: Path, name: str, old: str, new: str) -> str:
    text = chart_path(name).read_text()
    assert old in text, "the trap"
    path = folder / f"{name}.scxml"
    path.write_text(text.replace(old, new, 1))
    return str(path)


def actions(lines: list[str]) -> list[str]:
    """Of a way that was shown, checked to be numbered."""
    assert [line.split(". ")[0].strip() for line in lines] == [str(n) for n in range(1, len(lines) + 1)]
    return [line.split(". ", 1)[1] for line in lines]


def test_the_size_of_what_was_visited_is_told(run: Run) -> None:
    found = [judge(attrs.evolve(TWO_REQUESTS[SCENARIO], depth=depth)).found for depth in (1, 2)]
    code, lines, err = run("--scenario", SCENARIO)
    assert (code, err) == (0, "")
    for depth, one, line in zip((1, 2), found, lines, strict=False):
        assert line == f"{SCENARIO}, depth {depth}: {one.states:,} states, {one.edges:,} edges"
        assert one.states > 1000
    states, edges = sum(one.states for one in found), sum(one.edges for one in found)
    assert lines[2:] == [f"nothing is wrong in {states:,} states and {edges:,} edges of 2 systems"]
    assert run("--scenario", SCENARIO, "--depth", "2")[1][0] == lines[1]


def test_by_default_it_is_what_the_tests_explore() -> None:
    chosen = [name for name, _ in charts_together._chosen(TogetherFlags())]
    scenarios = [*TWO_REQUESTS, *THREE_REQUESTS]
    assert len(scenarios) == len(TWO_REQUESTS) + len(THREE_REQUESTS) > 50
    assert chosen == [f"{name}, depth {depth}" for name in scenarios for depth in (1, 2)]


@pytest.mark.parametrize("defect", ["no-turns", "block-leak", "early-adopted"])
def test_a_planted_defect_is_shown_with_a_shortest_way(run: Run, defect: str) -> None:
    code, lines, err = run("--plant", defect)
    options, says = DEFECTS[defect]
    assert code == 1 and says in lines[0] and says in err and err.count("\n") == 1
    assert lines[0].startswith(f"{defect} planted: ") and lines[0].endswith(", after")
    way = actions(lines[1:])
    system = System(attrs.evolve(options, planted=frozenset([defect])))
    state = system.start()
    for action in way[:-1]:
        assert action in system.actions(state)
        state = system.apply(state, action)
    with pytest.raises(Exception, match=says.replace("[", r"\[")):
        system.apply(state, way[-1])
    shorter = judge(system.options, limit=20_000).fault
    assert shorter is not None and len(shorter.path) == len(way)


def test_a_changed_chart_is_explored_among_the_others(run: Run, tmp_path: Path) -> None:
    path = changed(tmp_path, "loop", 'event="retire rows.ready pass.wanted', 'event="retire pass.wanted')
    code, lines, err = run("--changed", path, "--scenario", "nothing goes wrong", "--depth", "1")
    assert code == 1 and lines[0] == "nothing goes wrong, depth 1: a deadlock, after"
    options = attrs.evolve(TWO_REQUESTS["nothing goes wrong"], charts=(("loop", load_chart(Path(path))),))
    system = System(options)
    state = system.start()
    for action in actions(lines[1:]):
        state = system.apply(state, action)
    assert not system.actions(state) and not system.done(state)
    assert err == "luce: nothing goes wrong, depth 1: a deadlock\n"


def test_a_way_to_a_state_is_shown(run: Run) -> None:
    code, lines, err = run("--to", "request.parked_dropped", "--scenario", TO_PARKED)
    assert (code, err) == (0, "")
    assert lines[0] == f"{TO_PARKED}, depth 1: request 1 is in parked_dropped, after"
    way = actions(lines[1:])
    assert way[0] == "client 0 submits" and way[-1] == "request 1 handles park.drop"
    code, lines, err = run("--to", "request.parked_dropped", "--scenario", SCENARIO, "--depth", "1")
    assert (code, lines) == (1, []) and err.startswith("luce: no request comes into parked_dropped, in ")


def test_a_way_to_a_state_of_one_chart_is_shown(run: Run) -> None:
    code, lines, err = run("request", "--to", "decoding")
    assert (code, err) == (0, "") and lines[0] == "request is in decoding, after"
    assert actions(lines[1:])[-1].startswith("chunk.done if ")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["loop", "--depth", "2"], "--depth: is of all charts together; leave out the chart"),
        (["--depth", "3"], "--depth"),
        (["--scenario", "a step fails"], "--scenario: there is no scenario 'a step fails'"),
        (["--plant", "no-turn"], "--plant: there is no defect 'no-turn'; did you mean no-turns?"),
        (["--plant", "no-turns", "--depth", "1"], "--plant: a defect has a scenario of its own"),
        (["--to", "decoding"], "--to: write it as request.decoding"),
        (["--to", "request.decodin"], "--to: request has no state 'decodin'; did you mean decoding?"),
        (["loop", "--to", "decoding"], "--to: loop has no state 'decoding'"),
        (["--changed", "CHART"], "--changed: CHART is named 'block'"),
        (["--changed", "LOOP", "--changed", "LOOP"], "--changed: two of them are named 'loop'"),
    ],
    ids=" ".join,
)
def test_flags_that_cannot_be_are_one_line(run: Run, arguments: list[str], said: str) -> None:
    paths = {"CHART": str(chart_path("block")), "LOOP": str(chart_path("loop"))}
    code, lines, err = run(*[paths.get(one, one) for one in arguments])
    assert (code, lines, err.count("\n")) == (2, [], 1), err
    assert said.replace("CHART", paths["CHART"]) in err


def test_a_changed_chart_must_fit_its_actor(run: Run, tmp_path: Path) -> None:
    path = changed(tmp_path, "encoder", 'cond="more"', 'cond="mor"')
    code, lines, err = run("--changed", path)
    assert (code, lines) == (1, []) and "EncoderGuards has no @guard method mor" in err


def test_what_is_too_large_says_so(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(charts_together, "MOST_STATES", 100)
    code, lines, err = run("--scenario", SCENARIO)
    assert (code, lines) == (1, []) and "more than 100 states, too many to visit all" in err
