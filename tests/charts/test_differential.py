"""luce's interpreter against python-statemachine: same verdict and same configuration on random events."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from luce.charts.interpreter import Machine
from luce.charts.loader import chart_names, chart_path, load_chart, parse_chart
from luce.charts.model import Chart
from luce.errors import ChartError, IllegalEvent
from luce.replay.independent import Independent
from tests.charts.independent import guard_table, mend
from tests.charts.random_charts import EVENTS, charts

EVENTS_PER_CHART = 2000
STEPS_PER_MACHINE = 40


def compare(chart: Chart, text: str, rng: random.Random, events: int) -> tuple[int, int]:
    """Random walks; half of the events are drawn from the legal ones. Returns (legal, illegal)."""
    legal = illegal = 0
    names = sorted(chart.events)
    while legal + illegal < events:
        table = guard_table(chart)
        machine = Machine(chart, table)
        table.answers = {name: rng.random() < 0.5 for name in sorted(chart.guards)}
        machine.start()
        reference = Independent(chart, text, table.answers)
        assert machine.configuration == reference.configuration
        for _ in range(STEPS_PER_MACHINE):
            table.answers = {name: rng.random() < 0.5 for name in sorted(chart.guards)}
            event = rng.choice(names)
            if rng.random() < 0.5:
                event = rng.choice([e for e in names if machine.accepts(e)] or names)
            before = machine.configuration
            try:
                machine.feed(event)
                accepted = True
            except IllegalEvent:
                accepted = False
                assert machine.configuration == before
            assert reference.feed(event, table.answers) == accepted, (before, event, table.answers)
            assert machine.configuration == reference.configuration, (before, event, table.answers)
            legal += accepted
            illegal += not accepted
            if machine.finished:
                break
    return legal, illegal


@pytest.mark.parametrize("name", chart_names())
def test_charts_agree_with_the_independent_interpreter(name: str) -> None:
    chart = load_chart(name)
    legal, illegal = compare(chart, chart_path(name).read_text(), random.Random(7), EVENTS_PER_CHART)
    assert min(legal, illegal) > EVENTS_PER_CHART // 10


def test_a_difference_is_noticed() -> None:
    """The comparison fails when the two run different charts."""
    text = chart_path("encoder").read_text()
    changed = text.replace('<transition event="image.done" target="idle">', '<transition event="image.done">')
    assert changed != text
    with pytest.raises(AssertionError):
        compare(load_chart("encoder"), changed, random.Random(7), 500)


@given(text=charts(), seed=st.integers(0, 2**16))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_random_charts_agree(text: str, seed: int) -> None:
    chart = parse_chart(text.encode(), "random", wildcards=True)
    rng = random.Random(seed)
    table = guard_table(chart)
    table.answers = {name: rng.random() < 0.5 for name in sorted(chart.guards)}
    machine = Machine(chart, table)
    try:
        machine.start()
    except ChartError:  # eventless transitions without end
        return
    reference = Independent(chart, text, table.answers, adjust=mend)
    assert machine.configuration == reference.configuration
    for _ in range(12):
        if machine.finished:
            break
        table.answers = {name: rng.random() < 0.5 for name in sorted(chart.guards)}
        event = rng.choice(EVENTS)
        before = machine.configuration
        try:
            accepted = machine.accepts(event)
        except ChartError:
            return
        if accepted:
            machine.feed(event)
        assert reference.feed(event, table.answers) == accepted, (before, event, table.answers)
        assert machine.configuration == reference.configuration, (before, event, table.answers)
