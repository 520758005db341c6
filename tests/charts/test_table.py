"""Compiled tables: the same as the interpreter everywhere, and all or nothing."""

from __future__ import annotations

from collections import deque
from itertools import product

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings

from luce.charts.explorer import reachable
from luce.charts.interpreter import Machine
from luce.charts.loader import load_chart, parse_chart
from luce.charts.model import Chart
from luce.charts.table import ILLEGAL, ChartTable, compile_table
from luce.errors import ChartError, IllegalEvent
from tests.charts.independent import guard_table
from tests.charts.random_charts import charts

HEAD = '<scxml xmlns="http://www.w3.org/2005/07/scxml" version="1.0" name="t" datamodel="luce">'

Feed = tuple[str, tuple[bool, ...]]


def parse(body: str) -> Chart:
    return parse_chart(f"{HEAD}{body}</scxml>".encode(), "t.scxml")


LAMP = parse(
    '<parallel id="lamp">'
    '<state id="power"><state id="off"><transition event="press" cond="plugged" target="on"/></state>'
    '<state id="on"><transition event="press" target="off"/></state></state>'
    '<state id="shade"><state id="clean"><transition event="dust" target="dusty"/></state>'
    '<state id="dusty"><transition event="wipe" cond="In(\'off\')" target="clean"/>'
    '<transition event="wipe" cond="brave"/></state></state>'
    "</parallel>"
)
"""In it `wipe` asks a guard only while the lamp is on."""


def run(chart: Chart, path: tuple[Feed, ...]) -> Machine:
    """A machine of the interpreter that has been fed `path`."""
    table = guard_table(chart)
    machine = Machine(chart, table)
    machine.start()
    for event, answers in path:
        table.answers = dict(zip(chart.guard_order, answers, strict=True))
        machine.feed(event)
    return machine


def compare(chart: Chart) -> ChartTable:
    """Feeds every event under all guard answers to an interpreter in every configuration, and looks it up."""
    table = compile_table(chart)
    numbers = {here: number for number, here in enumerate(table.configurations)}
    paths: dict[int, tuple[Feed, ...]] = {0: ()}
    work = deque([0])
    assert table.configurations[0] is run(chart, ()).current
    while work:
        at = work.popleft()
        for event in sorted(chart.events):
            for answers in product((False, True), repeat=len(chart.guard_order)):
                bits = sum(answer << i for i, answer in enumerate(answers))
                found = int(table.rows[event][bits << 8 | at])
                path = (*paths[at], (event, answers))
                try:
                    then = numbers[run(chart, path).current]
                except IllegalEvent:
                    then = ILLEGAL
                assert found == then, (table.configurations[at], event, answers)
                if then != ILLEGAL and then not in paths:
                    paths[then] = path
                    work.append(then)
    assert len(paths) == len(table.configurations)
    for row in table.rows.values():
        assert (row.reshape(-1, 256)[:, len(table.configurations) :] == ILLEGAL).all()
    return table


@pytest.mark.parametrize("chart", [load_chart("block"), LAMP], ids=["block", "lamp"])
def test_the_table_is_the_interpreter(chart: Chart) -> None:
    table = compare(chart)
    values = np.concatenate(list(table.rows.values()))
    assert ILLEGAL in values
    assert set(range(len(reachable(chart)))) <= set(values.tolist())


@given(text=charts())
@settings(
    max_examples=100, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.filter_too_much]
)
def test_tables_of_random_charts_are_the_interpreter(text: str) -> None:
    chart = parse_chart(text.encode(), "random", wildcards=True)
    try:
        compile_table(chart)
    except ChartError as error:  # eventless transitions without end, or a guard asked on the way in
        assert "microsteps" in str(error) or "entering the chart" in str(error)
        assume(False)
    compare(chart)


@pytest.mark.parametrize("chart", [load_chart("block"), LAMP], ids=["block", "lamp"])
def test_where_a_state_is_active_is_looked_up_for_many_at_once(chart: Chart) -> None:
    table = compile_table(chart)
    states = np.arange(len(table.configurations), dtype=np.uint8)[::-1]
    for state in chart.states:
        here = [state in table.configurations[byte].active for byte in states]
        assert table.active(state, states).tolist() == here
        assert any(here)
    with pytest.raises(KeyError):
        table.active("nowhere", states)


def test_a_range_is_stepped_at_once() -> None:
    table = compile_table(LAMP)
    states = np.zeros(6, np.uint8)
    ids = np.array([4, 1, 5], np.intp)
    bits = np.array([1, 0b11, 1], np.uint8)
    assert LAMP.guard_order == ("plugged", "brave")
    after = table.step("press", states, ids, bits)
    (lit,) = {int(byte) for byte in after}
    assert table.configurations[lit].states == ("lamp", "power", "on", "shade", "clean")
    assert states.tolist() == [0, lit, 0, 0, lit, lit]
    table.step("press", states, ids[:2], bits[:2])
    assert states.tolist() == [0, 0, 0, 0, 0, lit]


def test_one_illegal_member_stops_the_range() -> None:
    table = compile_table(load_chart("block"))
    states = np.zeros(6, np.uint8)
    table.step("alloc", states, np.array([2, 4], np.intp))
    before = states.copy()
    with pytest.raises(IllegalEvent, match="block 4 in held, held_open: no transition for event 'alloc'"):
        table.step("alloc", states, np.array([0, 1, 4, 2], np.intp))
    assert (states == before).all()


def test_guards_decide_what_is_illegal() -> None:
    table = compile_table(LAMP)
    states = np.zeros(2, np.uint8)
    ids = np.arange(2, dtype=np.intp)
    table.step("dust", states, ids)
    table.step("press", states, ids, np.array([1, 1], np.uint8))
    with pytest.raises(IllegalEvent, match=r"t 1 in lamp, power, on, shade, dusty: .* 'wipe'"):
        table.step("wipe", states, ids, np.array([2, 1], np.uint8))
    assert table.step("wipe", states, ids, np.array([2, 3], np.uint8)).tolist() == states.tolist()


def test_an_empty_range_is_no_event() -> None:
    table = compile_table(load_chart("block"))
    states = np.zeros(3, np.uint8)
    assert table.step("evict", states, np.zeros(0, np.intp)).tolist() == []
    assert not states.any()


def test_misuse_is_said() -> None:
    table = compile_table(LAMP)
    states, ids = np.zeros(2, np.uint8), np.arange(2, dtype=np.intp)
    with pytest.raises(ChartError, match="t: the chart has no event 'pres'"):
        table.step("pres", states, ids)
    for event in ("press", "wipe"):
        with pytest.raises(ChartError, match="asks guards"):
            table.step(event, states, ids)
    with pytest.raises(IndexError):
        table.step("press", states, ids, np.array([1, 4], np.uint8))
    states[1] = 99
    with pytest.raises(IllegalEvent, match="t 1 in the unknown state byte 99"):
        table.step("dust", states, ids)
    assert states.tolist() == [0, 99]


def test_states_by_name() -> None:
    table = compile_table(LAMP)
    assert len(table.configurations) == 4
    assert len(table.numbers("on")) == 2
    block = compile_table(load_chart("block"))
    assert block.number("free") == 0
    assert sorted(block.numbers("held")) == sorted([block.number("held_open"), block.number("held_hashed")])
    with pytest.raises(KeyError, match="'on' is active in 2 configurations"):
        table.number("on")
    with pytest.raises(KeyError, match="no configuration has the state 'dim'"):
        table.number("dim")


def test_what_no_table_can_hold_is_refused() -> None:
    with pytest.raises(ChartError, match=r"encoder: sends dropped, encode\.failed, image\.ready"):
        compile_table(load_chart("encoder"))
    entry = (
        '<state id="a"><onentry><send target="#_x" event="hello"/></onentry><transition event="e"/></state>'
    )
    with pytest.raises(ChartError, match="t: sends hello"):
        compile_table(parse(entry))
    guards = "".join(f'<transition event="e" cond="g{i}"/>' for i in range(9))
    with pytest.raises(ChartError, match="9 guards do not fit a byte"):
        compile_table(parse(f'<state id="a">{guards}</state>'))
    regions = "".join(
        f'<state id="r{i}"><state id="a{i}"><transition event="e{i}" target="b{i}"/></state>'
        f'<state id="b{i}"><transition event="e{i}" target="a{i}"/></state></state>'
        for i in range(8)
    )
    with pytest.raises(ChartError, match="256 configurations do not fit a byte"):
        compile_table(parse(f'<parallel id="p">{regions}</parallel>'))


def test_raised_events_are_part_of_the_step() -> None:
    chart = parse(
        '<state id="a"><transition event="go" target="b"><raise event="on"/></transition></state>'
        '<state id="b"><transition event="on" target="c"/></state><state id="c"><transition event="go"/></state>'
    )
    table = compare(chart)
    assert table.rows["go"][0] == table.number("c")
