"""`prefix_entry.scxml` explored alone with the one number that its guard reads, and stepped as a table."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from luce.charts.explorer import Violation, explore, reachable
from luce.charts.guards import bind_guards
from luce.charts.interpreter import Configuration, Step, advance, initial
from luce.charts.loader import chart_path, load_chart, parse_chart
from luce.charts.model import Chart
from luce.errors import ChartError, IllegalEvent
from luce.scheduling.prefix_entry import Entry, EntryChart
from luce.scheduling.prefix_keys import Counts

READERS = 3

State = tuple[Configuration, int]


def entry(byte: int = 0) -> Entry:
    return Entry(5, b"key", 8, Counts(8, 0), False, 1, 1, byte)


class EntryModel:
    """An entry with at most three readers. Readers come where look-ups find the entry, and each leaves once, whatever
    has become of it; the rest happens when the chart takes it."""

    def __init__(self, chart: Chart) -> None:
        self.chart = chart

    def start(self) -> State:
        here = initial(self.chart).then
        assert here is not None
        return here, 0

    def actions(self, state: State) -> Iterator[str]:
        here, readers = state
        for event in sorted(self.chart.events - {"unlock"}):
            legal = advance(here, event, lambda _: readers > 0).then is not None
            if legal and (event != "lock" or readers < READERS):
                yield event
        if readers:
            yield "unlock"

    def apply(self, state: State, action: str) -> State:
        here, readers = state
        if action in ("evict", "demote") and readers:
            raise Violation(f"{action} of an entry with {readers} readers")
        readers += (action == "lock") - (action == "unlock")
        then = advance(here, action, lambda _: readers > 0).then
        if then is None:
            raise IllegalEvent("prefix_entry", here.states, action)
        if readers and not {"in_use", "promoting", "condemned"} & then.active:
            raise Violation(f"{readers} readers of an entry that is {then.states}")
        if not readers and {"in_use", "condemned"} & then.active:
            raise Violation(f"nobody reads an entry that is {then.states}")
        return then, readers


def end(state: State) -> bool:
    return state[0].finished


def test_readers_keep_an_entry_and_everything_can_end() -> None:
    found = explore(EntryModel(load_chart("prefix_entry")))
    assert found.complete and found.faults == []
    assert found.stuck(end) == [] and found.cut_off(end) == []
    assert {state for here, _ in found.numbers for state in here.states} == set(
        load_chart("prefix_entry").states
    )
    assert {readers for _, readers in found.numbers} == set(range(READERS + 1))
    assert found.states == 15


def test_reachable_configurations() -> None:
    """A changed number is a changed chart."""
    assert len(reachable(load_chart("prefix_entry"))) == 8


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ('<transition event="unlock" cond="locked"/>\n      <', "<", "2. lock"),
        (
            '<transition event="broken" target="condemned"/>',
            '<transition event="broken" target="gone"/>',
            "readers of an",
        ),
        ('<transition event="promoted" cond="locked" target="in_use"/>', "", "readers of an"),
        ('<transition event="lock unlock"/>', '<transition event="lock"/>', "unlock"),
        (
            '      <transition event="lock"/>\n',
            '      <transition event="lock evict"/>\n',
            "evict of an entry",
        ),
    ],
)
def test_planted_faults_are_found(old: str, new: str, fault: str) -> None:
    text = chart_path("prefix_entry").read_text()
    assert old in text
    chart = parse_chart(text.replace(old, new, 1).encode(), "prefix_entry")
    found = explore(EntryModel(chart))
    assert found.faults and fault in str(found.faults[0])


def test_the_guard_is_the_entrys() -> None:
    bind_guards(load_chart("prefix_entry"), entry())
    text = chart_path("prefix_entry").read_text().replace("locked", "loked")
    with pytest.raises(ChartError, match="loked"):
        bind_guards(parse_chart(text.encode(), "prefix_entry"), entry())


def test_a_step_is_a_record_and_an_illegal_one_changes_nothing() -> None:
    steps: list[Step] = []
    chart = EntryChart(steps.append)
    one = entry(chart.building)
    with pytest.raises(IllegalEvent, match=r"prefix_entry 5.*building.*lock"):
        chart.step(one, "lock")
    assert one.byte == chart.building and not steps
    chart.step(one, "filled")
    one.locks = 1
    chart.step(one, "lock")
    chart.step(one, "unlock")  # one of two readers
    one.locks = 0
    chart.step(one, "unlock")
    assert [(step.event, step.guards, step.configuration[-1]) for step in steps] == [
        ("filled", 0, "ready"),
        ("lock", 1, "in_use"),
        ("unlock", 1, "in_use"),
        ("unlock", 0, "ready"),
    ]
    assert {step.machine for step in steps} == {"prefix_entry"} and {step.id for step in steps} == {5}
