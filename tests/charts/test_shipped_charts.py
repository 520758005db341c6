"""Properties of luce's own charts, each explored alone over all guard values."""

from __future__ import annotations

from itertools import permutations

import pytest

from luce.charts.explorer import reachable
from luce.charts.interpreter import Configuration, outcomes
from luce.charts.loader import chart_names, load_chart

CHOICES = {"request": {"arrival", "encoding_enter", "staging_enter", "decoding_enter", "ending_mask_enter"}}


def step(here: Configuration, event: str) -> list[Configuration]:
    return [outcome.then for _, outcome in outcomes(here, event) if outcome.then is not None]


@pytest.mark.parametrize("name", chart_names())
def test_every_state_is_reached_and_no_live_one_is_stuck(name: str) -> None:
    chart = load_chart(name)
    found = reachable(chart)
    seen = {state for here in found for state in here.states}
    assert set(chart.states) - seen == CHOICES.get(name, set())
    for here in found:
        legal = {event for event in chart.events if step(here, event)}
        assert bool(legal) != here.finished, here


def test_request_has_the_configurations_of_the_notes() -> None:
    assert len(reachable(load_chart("request"))) == 50


def test_cancel_ends_a_request_from_everywhere() -> None:
    """Invariant I5, on the chart alone: cancel, then `retired`, `dropped` and a mask on its way, in any order."""
    for here in reachable(load_chart("request")):
        if here.finished:
            continue
        endings = step(here, "cancel")
        assert len(endings) == (2 if "live" in here.active else 1), "with a mask on its way or not"
        for ending in endings:
            assert "ending" in ending.active
            for order in permutations(("retired", "dropped", "mask.ready")):
                at = ending
                for event in order:
                    at = step(at, event)[0] if step(at, event) else at
                assert at.finished, (here, order)


def test_every_live_request_can_go_on_without_cancel() -> None:
    chart = load_chart("request")
    for here in reachable(chart):
        assert here.finished or any(step(here, event) for event in chart.events - {"cancel"})


def test_only_late_results_are_legal_in_ending() -> None:
    """What the loop sends while every mailbox is empty can never meet a request that has ended."""
    chart = load_chart("request")
    forbidden = {"slot.granted", "park.save", "park.drop", "pass.joined"}
    for here in reachable(chart):
        if "ending" in here.active or here.finished:
            assert not any(step(here, event) for event in forbidden), here


def test_a_pass_is_never_parked() -> None:
    """Invariant I4, on the chart alone: its rows are in no block yet, so there is nothing to save and all to lose."""
    chart = load_chart("request")
    in_pass = [here for here in reachable(chart) if {"staging_in_pass", "staging_importing"} & here.active]
    assert len(in_pass) == 4
    for here in in_pass:
        assert not step(here, "park.save") and not step(here, "park.drop")


def test_the_loop_never_runs_ahead_twice_and_keeps_count() -> None:
    """Results are handed out once a step, and at most two steps are in flight."""
    for here in reachable(load_chart("loop")):
        assert bool(step(here, "step.done")) == ("in_flight" in here.active)
        planning = {"planning_alone", "planning_beside", "ahead"} & here.active
        assert bool(step(here, "plan.rows")) == bool(planning)
        assert bool(step(here, "plan.empty")) == bool(planning)
        assert bool(step(here, "turn.done")) == ("turn" in here.active)


def test_a_closed_loop_sends_arrivals_away() -> None:
    for here in reachable(load_chart("loop")):
        if "closed" in here.active:
            sends = [outcome.sends for _, outcome in outcomes(here, "admit")]
            assert all(any(s.event == "queue.expired" for s in each) for each in sends)


def test_a_limit_that_runs_out_ends_a_request_from_everywhere() -> None:
    """From every live configuration to the same end; in `ending` it comes too late and is legal, later it is not."""
    for here in reachable(load_chart("request")):
        after = step(here, "deadline.expired")
        if "live" in here.active:
            assert [set(then.active) >= {"ending_failed", "rows_held", "job_held"} for then in after] == [
                True,
                True,
            ]
            assert {"mask_held" in then.active for then in after} == {True, False}
            sends = [outcome.sends for _, outcome in outcomes(here, "deadline.expired")]
            assert all(any(s.event == "deadline.expired" and s.delay is None for s in each) for each in sends)
        else:
            assert after == ([] if here.finished else [here])
