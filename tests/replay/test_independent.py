"""python-statemachine's machines of one chart share what it made of the text, and nothing else."""

from __future__ import annotations

from luce.charts.loader import parse_chart
from luce.replay.independent import Independent, machine_class

TEXT = (
    '<scxml xmlns="http://www.w3.org/2005/07/scxml" version="1.0" name="t" datamodel="luce"><parallel id="both">'
    '<state id="light" initial="off"><state id="off"><transition event="press" target="on"/></state>'
    '<state id="on"/></state>'
    '<state id="door" initial="shut"><state id="shut">'
    '<transition event="push" cond="In(\'on\')" target="wide"/>'
    '<transition event="push" target="ajar"/></state><state id="wide"/><state id="ajar"/></state>'
    "</parallel></scxml>"
)
CHART = parse_chart(TEXT.encode(), "t.scxml")


def test_each_machine_is_told_its_own_states() -> None:
    """One whose light is on, and one whose light is off, whichever comes first."""
    for first in (True, False):
        made = machine_class(CHART, TEXT)
        machines = {lit: Independent(CHART, TEXT, {}, made=made) for lit in (first, not first)}
        assert machines[True].feed("press", {})
        assert all(machine.feed("push", {}) for machine in machines.values())
        assert machines[True].configuration == ("both", "light", "on", "door", "wide")
        assert machines[False].configuration == ("both", "light", "off", "door", "ajar")
