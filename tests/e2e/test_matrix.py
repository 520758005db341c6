"""The exactness matrix: few cells that hold every three levels, and that it sees what it is there to see."""

from __future__ import annotations

import itertools
from typing import Any

import attrs
import numpy as np
import pytest
import trio
from rich.console import Console

from luce.cli.matrix import run_matrix
from luce.demo.matrix import running
from luce.demo.matrix.cells import FACTORS, Cell, all_cells, named_cell
from luce.demo.matrix.covering import covering_cells, tuples_of
from luce.demo.matrix.running import Bench, Report, run_cell
from luce.demo.matrix.summary import Summary
from luce.engines.qwen35.engine import Qwen35Engine
from luce.errors import ConfigError
from tests.e2e.demo_mixture import USED, write_demo_mixture

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SAMPLE = covering_cells()


@pytest.fixture(scope="module")
def bench() -> Bench:
    return Bench()


@pytest.fixture(scope="module")
def summary() -> Summary:
    """Of the sample's cells that ran in this process."""
    return Summary()


@pytest.mark.parametrize("cell", SAMPLE, ids=str)
def test_the_answer_is_that_of_the_request_alone(bench: Bench, summary: Summary, cell: Cell) -> None:
    report = trio.run(run_cell, bench, cell)
    summary.add(report)
    assert report.wrong == []
    assert report.missing == [], report


def test_slots_changed_hands_in_the_sample(summary: Summary) -> None:
    """Not in every cell, since neighbours come and go as they do; but parked requests found others in their place."""
    if summary.cells < len(SAMPLE):
        pytest.skip(f"only {summary.cells} of the {len(SAMPLE)} cells ran")
    for name in ("moved", "lent", "deep", "beside"):
        assert summary.counts[name] > 0, name
    assert summary.counts["hits"] == sum(cell.cache == "hot" for cell in SAMPLE)


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(write_demo_mixture(tmp_path_factory.mktemp("mixture")))


@pytest.mark.parametrize("cell", covering_cells(strength=2), ids=str)
def test_a_mixture_of_experts_answers_as_it_does_alone(mixture: Bench, cell: Cell) -> None:
    """In fewer cells, which hold every two levels: the feed-forward is all that differs from the bundled model."""
    config = mixture.opened(1).config.text
    assert config.moe is not None and config.moe.used == USED
    report = trio.run(run_cell, mixture, cell)
    assert report.wrong == []
    assert report.missing == [], report


def test_the_mixture_is_another_model(bench: Bench, mixture: Bench) -> None:
    """Its experts take part: all that it shares with the bundled model is what that one knows."""
    for images in (False, True):
        asked = (one.questions.probes[images, False] for one in (bench, mixture))
        dense, mixed = (
            trio.run(one.alone, probe) for one, probe in zip((bench, mixture), asked, strict=True)
        )
        assert dense != mixed and 20 <= len(mixed) <= 60


# -- the cells ----------------------------------------------------------------------------------------------------


def test_all_combinations_are_cells() -> None:
    cells = all_cells()
    assert len(set(cells)) == len({cell.name for cell in cells}) == 3 * 4 * 3 * 4 * 2 * 3
    assert [named_cell(cell.name) for cell in cells] == cells


def test_half_of_the_cells_draw_their_tokens_whatever_five_levels_they_share() -> None:
    for factor in range(len(FACTORS)):
        ways: dict[tuple[int, ...], set[bool]] = {}
        for cell in all_cells():
            rest = cell.levels[:factor] + cell.levels[factor + 1 :]
            ways.setdefault(rest, set()).add(cell.sampled)
        assert all(len(both) == 2 for both in ways.values())


def test_the_sample_holds_every_three_levels() -> None:
    found = set(itertools.chain.from_iterable(tuples_of(cell, 3) for cell in SAMPLE))
    wanted = {
        tuple(zip(factors, levels, strict=True))
        for factors in itertools.combinations(range(len(FACTORS)), 3)
        for levels in itertools.product(*(range(len(list(FACTORS.values())[f])) for f in factors))
    }
    assert found == wanted and len(wanted) == 617
    assert covering_cells() == SAMPLE, "always the same"
    # No fewer than 4 * 4 * 3 can do: so many levels have the three largest factors.
    assert 48 <= len(SAMPLE) <= 64


@pytest.mark.parametrize(
    "name", ["", "cold", "cold-64-4-saved-images", "cold-64-5-saved-images-steady", "x" * 99]
)
def test_a_name_of_no_cell_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"--cell: no cell has this name.*cold\|hot\|evicted"):
        named_cell(name)


# -- armed --------------------------------------------------------------------------------------------------------


def test_the_request_is_about_its_pictures_and_its_draws(bench: Bench) -> None:
    """Otherwise equal answers would say little."""
    questions = bench.questions
    alone = {
        name: trio.run(bench.alone, asked)
        for name, asked in (*questions.probes.items(), ("other", questions.other_pictures))
    }
    images = alone[True, False]
    assert alone["other"][0] != images[0], "other logprobs from the first token on"
    ids = {name: [token[:8] for token in answer] for name, answer in alone.items()}
    assert ids["other"] != ids[True, False]
    for pictures in (False, True):
        drawn, greedy = ids[pictures, True], ids[pictures, False]
        assert sum(a != b for a, b in zip(drawn, greedy, strict=False)) > 10
    for probe in questions.probes.values():
        assert len(probe.prompt.token_ids) > running.BLOCK
    assert all(20 <= len(answer) <= 60 for answer in alone.values())


def test_a_bit_that_depends_on_neighbours_is_seen(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine whose log-probabilities are off by the smallest step when four share one."""
    cell = named_cell("cold-64-4-unparked-text-steady")
    trio.run(run_cell, bench, cell)  # the answers alone are those of a good engine
    real = Qwen35Engine.collect

    def inexact(self: Qwen35Engine, ticket: Any) -> Any:
        result = real(self, ticket)
        if len(result.outcomes) < 4:
            return result
        return attrs.evolve(result, outcomes=tuple(map(_off_by_one, result.outcomes)))

    monkeypatch.setattr(Qwen35Engine, "collect", inexact)
    report = trio.run(run_cell, bench, cell)
    assert report.difference is not None and "another log-probability than alone" in report.difference
    assert any("neighbour" in text for text in report.wrong), "theirs are compared, too"
    assert report.missing == []
    monkeypatch.setattr("luce.cli.matrix.Bench", lambda: bench)
    console = Console(record=True, width=200)
    assert not run_matrix([cell], console)
    shown = console.export_text()
    assert f"FAIL {cell.name}: another log-probability than alone at place" in shown
    assert "1 run, 0 with the same bits as alone" in shown


def _off_by_one(outcome: Any) -> Any:
    tokens = [attrs.evolve(token, logprob=float(np.nextafter(token.logprob, 0))) for token in outcome.tokens]
    return attrs.evolve(outcome, tokens=tuple(tokens))


def test_a_state_that_comes_back_wrong_is_seen(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sampler that forgets after parking which tokens it has to penalise."""
    from luce.sampling.sampler import Sampler

    cell = named_cell("hot-64-4-dropped-text-steady")
    assert cell.sampled
    assert trio.run(run_cell, bench, cell).wrong == []
    monkeypatch.setattr(Sampler, "recall", lambda self, generated: None)
    assert trio.run(run_cell, bench, cell).wrong


def test_a_cell_that_is_not_what_it_says_is_seen(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal bits are not enough: without hits, parks and neighbours they prove nothing."""
    monkeypatch.setattr(running, "chosen_parkings", lambda *_: [])
    report = trio.run(run_cell, bench, named_cell("hot-whole-4-both-text-failing"))
    assert report.wrong == []
    assert {text.split(":")[0] for text in report.missing} == {"a save", "a drop", "rows computed again"}
    assert _missing(report, cached_tokens=0) == {*report.missing, "a cached prefix: not as the cell says"}
    assert "a shared step: not as the cell says" in _missing(report, shared=0)
    tally = attrs.evolve(report.company, not_finite=0, not_encoded=0, beside=0)
    assert len(_missing(report, company=tally)) == len(report.missing) + 3


def _missing(report: Report, **changed: Any) -> set[str]:
    return set(attrs.evolve(report, **changed).missing)
