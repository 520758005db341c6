"""Machines: what they answer, refuse, record and share."""

from __future__ import annotations

import pytest

from luce.charts.guards import guard
from luce.charts.interpreter import START, Machine, Step
from luce.charts.loader import parse_chart
from luce.charts.model import Chart, Send
from luce.errors import ChartError, IllegalEvent
from tests.charts.independent import guard_table

HEAD = '<scxml xmlns="http://www.w3.org/2005/07/scxml" version="1.0" name="t" datamodel="luce">'


def parse(body: str) -> Chart:
    return parse_chart(f"{HEAD}{body}</scxml>".encode(), "t.scxml")


DOOR = parse(
    '<state id="shut"><onentry><send target="#_light" event="off"/></onentry>'
    '<transition event="push" cond="locked"/>'
    '<transition event="push" cond="heavy" target="ajar"><send target="#_hinge" event="creak"/></transition>'
    '<transition event="push" target="wide"/></state>'
    '<state id="ajar"><transition event="pull" target="shut"/></state>'
    '<state id="wide"><transition event="pull" target="shut"/><transition event="burn" target="gone"/></state>'
    '<final id="gone"/>'
)


def test_feed_returns_sends_and_changes_state() -> None:
    table = guard_table(DOOR)
    machine = Machine(DOOR, table, id=7)
    assert machine.configuration == ()
    assert machine.start() == (Send("light", "off"),)
    assert machine.configuration == ("shut",)
    table.answers["heavy"] = True
    assert machine.feed("push") == (Send("hinge", "creak"),)
    assert machine.active("ajar")
    assert not machine.active("wide")
    assert machine.feed("pull") == (Send("light", "off"),)
    with pytest.raises(KeyError):
        machine.active("open")


def test_an_illegal_event_changes_nothing() -> None:
    machine = Machine(DOOR, guard_table(DOOR), id=7)
    machine.start()
    for event in ("pull", "unheard of"):
        for _ in range(2):
            assert not machine.accepts(event)
            with pytest.raises(IllegalEvent) as error:
                machine.feed(event)
            assert error.value.configuration == ("shut",)
            assert error.value.event == event
            assert error.value.machine == "t 7"
    assert machine.configuration == ("shut",)


def test_a_final_machine_takes_nothing() -> None:
    machine = Machine(DOOR, guard_table(DOOR))
    machine.start()
    machine.feed("push")
    assert not machine.finished
    machine.feed("burn")
    assert machine.finished
    assert machine.configuration == ("gone",)
    assert not any(machine.accepts(event) for event in DOOR.events)
    with pytest.raises(IllegalEvent):
        machine.feed("pull")


def test_start_comes_first_and_once() -> None:
    machine = Machine(DOOR, guard_table(DOOR))
    with pytest.raises(IllegalEvent):
        machine.feed("push")
    machine.start()
    with pytest.raises(ChartError, match="already started"):
        machine.start()


def test_only_guards_that_matter_are_asked_and_each_once() -> None:
    table = guard_table(DOOR)
    machine = Machine(DOOR, table)
    machine.start()
    table.answers["locked"] = True
    for _ in range(3):  # cold, then warm
        table.asked.clear()
        machine.feed("push")
        assert table.asked == ["locked"]
    table.answers["locked"] = False
    for _ in range(3):
        table.asked.clear()
        machine.feed("push")
        assert table.asked == ["locked", "heavy"]
        table.asked.clear()
        machine.feed("pull")
        assert table.asked == []


def test_a_guard_that_raises_changes_nothing() -> None:
    class Broken:
        @guard
        def locked(self) -> bool:
            return False

        @guard
        def heavy(self) -> bool:
            raise ZeroDivisionError

    steps: list[Step] = []
    machine = Machine(DOOR, Broken(), observer=steps.append)
    machine.start()
    with pytest.raises(ZeroDivisionError):
        machine.feed("push")
    assert machine.configuration == ("shut",)
    assert len(steps) == 1


def test_the_observer_sees_every_accepted_event() -> None:
    table = guard_table(DOOR)
    steps: list[Step] = []
    machine = Machine(DOOR, table, id="r1", observer=steps.append)
    machine.start()
    table.answers["heavy"] = True
    machine.feed("push")
    machine.feed("pull")
    heavy = 1 << DOOR.guard_order.index("heavy")
    assert steps == [
        Step("t", "r1", START, 0, ("shut",)),
        Step("t", "r1", "push", heavy, ("ajar",)),
        Step("t", "r1", "pull", 0, ("shut",)),
    ]
    assert Step(*steps[0]).configuration is Step(*steps[2]).configuration, "interned"


def test_machines_of_one_chart_share_the_memo_and_nothing_else() -> None:
    one, other = (Machine(DOOR, guard_table(DOOR)) for _ in range(2))
    one.start()
    other.start()
    one.feed("push")
    assert (one.configuration, other.configuration) == (("wide",), ("shut",))
    other.feed("push")
    assert one.current is other.current


def test_names_from_outside_do_not_fill_the_memo() -> None:
    machine = Machine(DOOR, guard_table(DOOR))
    machine.start()
    before = len(machine.current.table)
    for number in range(100):
        assert not machine.accepts(f"event{number}")
    assert len(machine.current.table) == before


def test_a_chart_that_never_settles_is_an_error() -> None:
    chart = parse(
        '<state id="a"><transition target="b"/></state><state id="b"><transition target="a"/></state>'
    )
    with pytest.raises(ChartError, match="no end"):
        Machine(chart, guard_table(chart)).start()


def test_guards_and_chart_must_fit() -> None:
    class Missing:
        @guard
        def locked(self) -> bool:
            return True

    class Extra(Missing):
        @guard
        def heavy(self) -> bool:
            return True

        @guard
        def red(self) -> bool:
            return True

    class Unmarked(Missing):
        def heavy(self) -> bool:
            return True

    for owner, message in (
        (Missing, "no @guard method heavy"),
        (Extra, "names no guard red"),
        (Unmarked, "heavy"),
    ):
        with pytest.raises(ChartError, match=message):
            Machine(DOOR, owner())


def test_history_and_done_events() -> None:
    chart = parse(
        '<state id="on" initial="p"><history id="back" type="deep"><transition target="p"/></history>'
        '<parallel id="p"><state id="l"><state id="l1"><transition event="x" target="l2"/></state><final id="l2"/>'
        '</state><state id="r"><state id="r1"><transition event="y" target="r2"/></state><final id="r2"/></state>'
        '<transition event="done.state.p" target="end"/></parallel>'
        '<transition event="off" target="dark"/></state>'
        '<state id="dark"><transition event="on" target="back"/></state><final id="end"/>'
    )
    machine = Machine(chart, guard_table(chart))
    machine.start()
    assert machine.configuration == ("on", "p", "l", "l1", "r", "r1")
    machine.feed("x")
    machine.feed("off")
    assert machine.configuration == ("dark",)
    machine.feed("on")
    assert machine.configuration == ("on", "p", "l", "l2", "r", "r1")
    machine.feed("y")
    assert machine.finished
