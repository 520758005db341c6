"""Turns cases of the SCION/W3C statechart suite into charts that luce's loader reads, and runs their scripts.

The suite is npm `@scion-scxml/test-framework` (jbeard4/scxml-test-framework, Apache-2.0): 336 SCXML files,
316 of them with a JSON script of events and the basic configuration expected after each. Cases that need a
data model, scripts, invocations, delays or other sessions are left out, each with its reason. What remains
needs four harmless translations: `<log>` is dropped, `cond="true"` and `"false"` become no condition and a
guard that is false, a `<send>` without target becomes one to `#_self` that the harness feeds back, and
nameless states get names.
"""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections import deque
from pathlib import Path

from luce.charts.guards import guard
from luce.charts.interpreter import Machine
from luce.charts.loader import parse_chart
from luce.charts.model import Chart, Kind
from luce.errors import IllegalEvent

__all__ = ["NotForUs", "cases", "run_case", "translate"]

_NAMESPACE = "{http://www.w3.org/2005/07/scxml}"
_UNSUPPORTED = frozenset(
    (
        "datamodel",
        "data",
        "script",
        "assign",
        "invoke",
        "if",
        "foreach",
        "param",
        "content",
        "finalize",
        "donedata",
        "cancel",
    )
)
_KEPT = {"id", "initial", "event", "cond", "target", "type"}


class NotForUs(Exception):  # noqa: N818 - not an error
    """The case needs a part of SCXML that luce leaves out on purpose."""


class NeverGuard:
    @guard
    def never(self) -> bool:
        return False


class NoGuards:
    pass


def cases(directory: Path) -> list[Path]:
    """All charts of the unpacked package that have a script, in a stable order."""
    found = sorted((directory / "package" / "test").rglob("*.scxml"))
    return [path for path in found if path.with_suffix(".json").is_file()]


def translate(source: str) -> bytes:
    """The chart in luce's dialect. Raises NotForUs with the reason."""
    root = ET.fromstring(source)
    for count, element in enumerate(list(root.iter())):
        _translate(element, count)
    initial = root.get("initial")
    root.attrib.clear()
    root.attrib.update({"version": "1.0", "datamodel": "luce", "name": "case"})
    if initial:
        root.set("initial", initial)
    return ET.tostring(root)


def _translate(element: ET.Element, count: int) -> None:
    for child in list(element):
        if child.tag == _NAMESPACE + "log":
            element.remove(child)
    element.text = None
    element.tail = None
    if not element.tag.startswith(_NAMESPACE):
        raise NotForUs("an element of another namespace")
    tag = element.tag.removeprefix(_NAMESPACE)
    if tag in _UNSUPPORTED:
        raise NotForUs(f"<{tag}>")
    if tag == "scxml" or tag == "log":
        return
    for name in element.attrib:
        if name not in _KEPT:
            raise NotForUs(f"attribute {name} of <{tag}>")
    condition = element.get("cond")
    if condition == "true":
        del element.attrib["cond"]
    elif condition == "false":
        element.set("cond", "never")
    elif condition is not None and not condition.startswith("In("):
        raise NotForUs("a condition in ECMAScript")
    if tag == "send":
        if element.get("target") or element.get("type"):
            raise NotForUs("send to another session or processor")
        element.set("target", "#_self")
    if tag in ("state", "parallel", "final", "history") and not element.get("id"):
        element.set("id", f"nameless_{count}")


def run_case(chart: Chart, script: dict[str, object]) -> None:
    """Runs one script and asserts every configuration on the way."""
    machine = Machine(chart, NeverGuard() if chart.guards else NoGuards())
    queue = deque(send.event for send in machine.start())
    _drain(machine, queue)
    expected = script["initialConfiguration"]
    assert isinstance(expected, list)
    assert _basic(machine) == sorted(expected), "initial configuration"
    events = script["events"]
    assert isinstance(events, list)
    for number, step in enumerate(events):
        queue.append(step["event"]["name"])
        _drain(machine, queue)
        assert _basic(machine) == sorted(step["nextConfiguration"]), f"after event {number}: {step}"


def _drain(machine: Machine, queue: deque[str]) -> None:
    """SCXML ignores events without a transition; luce's machines refuse them, so the harness ignores."""
    while queue and not machine.finished:
        try:
            queue.extend(send.event for send in machine.feed(queue.popleft()))
        except IllegalEvent:
            continue


def _basic(machine: Machine) -> list[str]:
    """The suite's configurations hold atomic and final states only."""
    kinds = {node.id: node.kind for node in machine.chart.nodes}
    return sorted(name for name in machine.configuration if kinds[name] in (Kind.ATOMIC, Kind.FINAL))


def load_case(path: Path) -> tuple[Chart, dict[str, object]]:
    """The chart and the script of one case. Raises NotForUs."""
    script = json.loads(path.with_suffix(".json").read_text())
    if any("after" in step or "data" in step["event"] for step in script["events"]):
        raise NotForUs("an event with a delay or data")
    return parse_chart(translate(path.read_text()), path.name, wildcards=True), script
