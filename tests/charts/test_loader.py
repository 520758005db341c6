"""The loader takes the subset and refuses everything else with the file, the line and the element."""

from __future__ import annotations

from pathlib import Path

import pytest

from luce.charts.loader import chart_names, chart_path, load_chart, parse_chart
from luce.charts.model import Chart, Send
from luce.errors import ChartError

HEAD = '<scxml xmlns="http://www.w3.org/2005/07/scxml" version="1.0" name="t" datamodel="luce"{}>'


def parse(body: str, attributes: str = "") -> Chart:
    return parse_chart(f"{HEAD.format(attributes)}\n{body}\n</scxml>".encode(), "t.scxml")


def test_a_chart_says_what_it_holds() -> None:
    chart = parse(
        '<state id="a"><onentry><send target="#_loop" event="admit"/>'
        '<send target="#_timer" event="late" delay="20ms"/></onentry>'
        '<onexit><send target="#_timer" event="late"/></onexit>'
        '<transition event="go late" cond="ready" target="b"/>'
        '<transition event="go"><raise event="inner"/></transition><transition event="inner"/></state>'
        '<state id="b"><history id="h"><transition target="c"/></history><state id="c"/><final id="d"/>'
        '<transition event="done.state.b" target="a"/><transition event="again" target="h"/>'
        '<transition event="over" target="d"/></state>'
    )
    assert chart.states == ("a", "b", "c", "d")
    assert chart.events == {"go", "late", "again", "over"}, "not raised ones, not done.state ones"
    assert chart.guards == {"ready"}
    assert chart.targets == {"loop"}
    assert chart.node("a").onentry == (Send("loop", "admit"), Send("timer", "late", 0.02))
    assert chart.node("a").onexit == (Send("timer", "late", None),)


STATE = '<state id="a">{}</state>'
TWO = '<state id="a">{}</state><state id="b"/>'
REFUSED = {
    "a DTD": (
        '<!DOCTYPE scxml [<!ENTITY x "y">]>' + HEAD.format("") + '<state id="a"/></scxml>',
        "type declaration",
    ),
    "broken XML": (HEAD.format("") + "<state></scxml>", "well-formed"),
    "another root": ('<chart xmlns="http://www.w3.org/2005/07/scxml"/>', "not an scxml element"),
    "no namespace": (
        '<scxml version="1.0" name="t" datamodel="luce"><state id="a"/></scxml>',
        "not an scxml element",
    ),
    "no version": (HEAD.format("").replace(' version="1.0"', "") + '<state id="a"/></scxml>', "version"),
    "another data model": (
        HEAD.format("").replace("luce", "ecmascript") + '<state id="a"/></scxml>',
        "datamodel",
    ),
    "no name": (HEAD.format("").replace('name="t"', "") + '<state id="a"/></scxml>', "name"),
    "no states": ("", "no states"),
    "a script": ("<script>1</script>" + STATE, "<script>: this element is not in luce's subset"),
    "a log": (STATE.format('<onentry><log expr="1"/></onentry>'), "<log>"),
    "an invocation": (STATE.format('<invoke type="x"/>'), "<invoke>"),
    "a foreign element": (STATE.format('<x xmlns="urn:y"/>'), "x of namespace 'urn:y'"),
    "a foreign attribute": ('<state id="a" color="red"/>', "attribute 'color'"),
    "text": (STATE.format("hello"), "text 'hello'"),
    "a transition at the top": ('<transition event="e" target="a"/>' + STATE, "not allowed inside <scxml>"),
    "an id twice": ('<state id="a"/><state id="a"/>', "used twice"),
    "no id": ("<state/>", "not an identifier"),
    "a dotted id": ('<state id="a.b"/>', "not an identifier"),
    "an unknown target": (STATE.format('<transition event="e" target="z"/>'), "no state 'z'"),
    "an empty target": (STATE.format('<transition event="e" target=" "/>'), "target is empty"),
    "an unknown In": (STATE.format('<transition event="e" cond="In(\'z\')"/>'), "no state 'z'"),
    "an expression": (STATE.format('<transition event="e" cond="x and y"/>'), "neither one guard name"),
    "a negation": (STATE.format('<transition event="e" cond="not x"/>'), "neither one guard name"),
    "a wildcard": (STATE.format('<transition event="*"/>'), "wildcards"),
    "a wildcard at the end": (STATE.format('<transition event="e.*"/>'), "wildcards"),
    "an empty event": (STATE.format('<transition event=""/>'), "event is empty"),
    "a strange type": (STATE.format('<transition event="e" type="inner"/>'), "neither external nor internal"),
    "an empty transition": (STATE.format("<transition/>"), "needs an event or a target"),
    "internal that is not": (TWO.format('<transition event="e" target="b" type="internal"/>'), "internal"),
    "an unreachable state": ('<state id="a"/><state id="b"/>', "'b' can never be entered"),
    "a shadowed transition": (
        STATE.format('<transition event="e"/><transition event="e" cond="g"/>'),
        "an earlier transition",
    ),
    "a prefix of an event": (
        STATE.format('<transition event="e"/><transition event="e.x"/>'),
        "would also match",
    ),
    "a reserved event": (STATE.format('<transition event="error.execution"/>'), "reserved"),
    "done of nothing": (STATE.format('<transition event="done.state.q"/>'), "names no state"),
    "done of a leaf": (STATE.format('<transition event="done.state.a"/>'), "names no state"),
    "a raise for nobody": (
        STATE.format('<transition event="e"><raise event="f"/></transition>'),
        "never handled",
    ),
    "initial outside": ('<state id="a" initial="b"><state id="c"/></state><state id="b"/>', "not inside 'a'"),
    "initial of itself": ('<state id="a" initial="a"><state id="c"/></state>', "not inside 'a'"),
    "initial of a leaf": ('<state id="a" initial="b"/><state id="b"/>', "only a state with child states"),
    "two initials": (
        '<state id="a" initial="c"><initial><transition target="c"/></initial><state id="c"/></state>',
        "more than one initial",
    ),
    "a guarded initial": (
        '<state id="a"><initial><transition cond="g" target="c"/></initial><state id="c"/></state>',
        "no event or cond",
    ),
    "an empty initial": ('<state id="a"><initial/><state id="c"/></state>', "exactly one transition"),
    "a history type": ('<state id="a"><history id="h" type="x"/><state id="c"/></state>', "shallow nor deep"),
    "a history without default": (
        '<state id="a"><history id="h"/><state id="c"/></state>',
        "exactly one transition",
    ),
    "an empty parallel": ('<parallel id="a"/>', "needs regions"),
    "targets in one region": (
        '<state id="a"><transition event="e" target="b c"/></state><state id="b"/><state id="c"/>',
        "cannot be active together",
    ),
    "nested targets": (
        '<state id="a"><transition event="e" target="b c"/></state><state id="b"><state id="c"/></state>',
        "cannot be active together",
    ),
    "a send to nobody": (STATE.format('<onentry><send event="e"/></onentry>'), '"#_actor"'),
    "a send to a session": (STATE.format('<onentry><send target="loop" event="e"/></onentry>'), '"#_actor"'),
    "a send without event": (STATE.format('<onentry><send target="#_loop"/></onentry>'), "not a plain event"),
    "a delayed send": (
        STATE.format('<onentry><send target="#_loop" event="e" delay="1s"/></onentry>'),
        "only a send to #_timer",
    ),
    "a delay without unit": (
        STATE.format('<onentry><send target="#_timer" event="e" delay="1"/></onentry>'),
        "unit s or ms",
    ),
    "a timer that is not stopped": (
        STATE.format(
            '<onentry><send target="#_timer" event="e" delay="1s"/></onentry><transition event="e"/>'
        ),
        "must arm the timer e on entry and stop it on exit",
    ),
    "a timer nobody handles": (
        STATE.format(
            '<onentry><send target="#_timer" event="e" delay="1s"/></onentry>'
            '<onexit><send target="#_timer" event="e"/></onexit>'
        ),
        "nothing handles the timer event 'e'",
    ),
    "a timer in a transition": (
        STATE.format('<transition event="e"><send target="#_timer" event="e" delay="1s"/></transition>'),
        "onentry and stopped in onexit only",
    ),
    "waiting for a guard": (TWO.format('<transition cond="g" target="b"/>'), "a choice is"),
    "a choice with events": (
        TWO.format('<transition event="e"/><transition target="b"/>'),
        "a choice is",
    ),
}


@pytest.mark.parametrize("case", sorted(REFUSED))
def test_refused(case: str) -> None:
    body, message = REFUSED[case]
    text = body if "<scxml" in body or "<chart" in body else f"{HEAD.format('')}\n{body}\n</scxml>"
    with pytest.raises(ChartError, match=r"^t\.scxml:\d+: ") as error:
        parse_chart(text.encode(), "t.scxml")
    assert message in str(error.value)


def test_the_line_is_named() -> None:
    with pytest.raises(ChartError, match=r"^t\.scxml:4: <transition>: there is no state 'z'"):
        parse('<state id="a">\n\n<transition event="e" target="z"/></state>')


def test_charts_are_found_by_name_and_path(tmp_path: Path) -> None:
    assert {"request", "loop", "encoder", "server"} <= set(chart_names())
    assert load_chart("request") is load_chart("request") is load_chart(chart_path("request"))
    copy = tmp_path / "mine.scxml"
    copy.write_bytes(chart_path("request").read_bytes())
    assert load_chart(copy).sha256 == load_chart("request").sha256
    with pytest.raises(ChartError, match="cannot read this statechart"):
        load_chart(tmp_path / "absent.scxml")
    with pytest.raises(ChartError, match="cannot read this statechart"):
        load_chart("absent")
