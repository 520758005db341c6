"""Loads a statechart file: finds it, builds the `Chart`, and refuses everything outside luce's subset.

The subset is W3C SCXML 1.0 with `datamodel="luce"`: state, parallel, final, history, initial, transition
(event, cond, target, type), onentry, onexit, raise, and send to `#_actor` or `#_timer`. A condition is one
guard name or `In('id')`. There are no scripts, data, wildcards or invocations: data belongs to the actor,
which offers it through guards, and so a chart can be drawn, explored and replayed without running anything
else.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

from luce.charts.checks import check_chart
from luce.charts.document import MAX_BYTES, Element, parse_xml
from luce.charts.model import Action, Chart, Kind, Raise, Send, State, Transition
from luce.errors import ChartError, quoted, reason

__all__ = ["chart_names", "chart_path", "load_chart", "parse_chart"]

_PACKAGE = Path(__file__).resolve().parent.parent
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_EVENT = re.compile(r"[A-Za-z_][\w-]*(\.[\w-]+)*")
_IN = re.compile(r"In\('([^']+)'\)")
_DELAY = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ms|s)")
_STATES = {"state", "parallel", "final", "history"}
_ACTIONS = {"raise", "send"}

MAX_DELAY = 10**9
"""Seconds, as of the flags that set delays."""

# What may stand inside what, and which attributes it may carry.
_CHILDREN = {
    "scxml": {"state", "parallel", "final", "initial"},
    "state": {"state", "parallel", "final", "history", "initial", "transition", "onentry", "onexit"},
    "parallel": {"state", "parallel", "history", "transition", "onentry", "onexit"},
    "final": {"onentry", "onexit"},
    "history": {"transition"},
    "initial": {"transition"},
    "transition": _ACTIONS,
    "onentry": _ACTIONS,
    "onexit": _ACTIONS,
    "raise": set[str](),
    "send": set[str](),
}
_ATTRIBUTES = {
    "scxml": {"version", "name", "initial", "datamodel"},
    "state": {"id", "initial"},
    "parallel": {"id"},
    "final": {"id"},
    "history": {"id", "type"},
    "initial": set[str](),
    "transition": {"event", "cond", "target", "type"},
    "onentry": set[str](),
    "onexit": set[str](),
    "raise": {"event"},
    "send": {"target", "event", "delay"},
}

_loaded: dict[tuple[str, str], Chart] = {}


def _directory() -> Path:
    """`luce/_statecharts` in an installed wheel, `statecharts` at the top of a checkout."""
    installed = _PACKAGE / "_statecharts"
    return installed if installed.is_dir() else _PACKAGE.parent / "statecharts"


def chart_names() -> tuple[str, ...]:
    """Names of the charts that ship with luce."""
    return tuple(sorted(path.stem for path in _directory().glob("*.scxml")))


def chart_path(name: str) -> Path:
    """The file of a chart that ships with luce."""
    return _directory() / f"{name}.scxml"


def load_chart(source: str | os.PathLike[str]) -> Chart:
    """Loads `source`: the name of one of luce's charts, such as `request`, or the path of a file.

    The same file content gives the same object, so that all machines of a chart share one memo. Raises
    ChartError that names the file, the line and the element.
    """
    named = isinstance(source, str) and _NAME.fullmatch(source)
    path = chart_path(str(source)) if named else Path(source)
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise ChartError(f"{path}: cannot read this statechart: {reason(error)}") from None
    key = (str(path), hashlib.sha256(data).hexdigest())
    chart = _loaded.get(key)
    if chart is None:
        chart = parse_chart(data, str(path))
        if named and chart.name != source:
            raise ChartError(f"{path}: the scxml element is named {quoted(chart.name)}, not {source!r}")
        _loaded[key] = chart
    return chart


def parse_chart(data: bytes, label: str, *, wildcards: bool = False) -> Chart:
    """Builds a chart from the bytes of a file. `label` stands for the file in messages.

    `wildcards` is for conformance cases only: it allows `event="*"`, events that are prefixes of others, dots
    in state ids, and states that cannot be reached.

    Raises ChartError, whatever the bytes are.
    """
    return _Builder(parse_xml(data, label), label, wildcards).chart(hashlib.sha256(data).hexdigest())


class _Builder:
    """Turns the XML tree into states by number. Two passes: number the states, then resolve names."""

    def __init__(self, root: Element, label: str, wildcards: bool) -> None:
        self.label = label
        self.wildcards = wildcards
        self.elements: list[Element] = []
        self.parents: list[int] = []
        self.below: list[list[int]] = []
        """Numbers of the states and histories directly inside each state."""
        self.numbers: dict[str, int] = {}
        self.guards: dict[str, None] = {}
        if root.tag != "scxml":
            raise self.error(root, "the document is not an scxml element of the SCXML namespace")
        self.check(root)
        self.number(root, 0)
        self.root = root

    def error(self, element: Element, message: str) -> ChartError:
        return ChartError(f"{self.label}:{element.line}: <{element.tag}>: {message}")

    def check(self, element: Element) -> None:
        """Elements, attributes and text, before anything is made of them."""
        for name in element.attributes:
            if name not in _ATTRIBUTES[element.tag]:
                raise self.error(element, f"attribute {quoted(name)} is not in luce's subset of SCXML")
        if element.text.strip():
            raise self.error(element, f"text {quoted(element.text.strip())} is not allowed")
        for child in element.children:
            if child.tag not in _CHILDREN:
                raise self.error(child, "this element is not in luce's subset of SCXML")
            if child.tag not in _CHILDREN[element.tag]:
                raise self.error(child, f"not allowed inside <{element.tag}>")
            self.check(child)

    def number(self, element: Element, parent: int) -> None:
        index = len(self.elements)
        self.elements.append(element)
        self.parents.append(parent)
        self.below.append([])
        if index:
            self.below[parent].append(index)
        if element.tag in _STATES:
            name = element.attributes.get("id", "")
            if not (_EVENT if self.wildcards else _IDENTIFIER).fullmatch(name):
                raise self.error(element, f"id {quoted(name)} is not an identifier")
            if name in self.numbers:
                raise self.error(element, f"id {quoted(name)} is used twice")
            self.numbers[name] = index
        for child in element.children:
            if child.tag in _STATES:
                self.number(child, index)

    def chart(self, sha256: str) -> Chart:
        attributes = self.root.attributes
        if attributes.get("version") != "1.0":
            raise self.error(self.root, 'version="1.0" is missing')
        if attributes.get("datamodel") != "luce":
            raise self.error(self.root, 'datamodel="luce" is missing')
        name = attributes.get("name", "")
        if not _NAME.fullmatch(name):
            raise self.error(self.root, f"name {quoted(name)} does not match {_NAME.pattern}")
        nodes = tuple(self.state(index) for index in range(len(self.elements)))
        transitions = [t for node in nodes for t in node.transitions]
        actions = [a for node in nodes for a in (*node.onentry, *node.onexit)]
        actions += [a for t in transitions for a in t.actions]
        actions += [a for node in nodes if node.initial for a in node.initial.actions]
        raised = {a.event for a in actions if isinstance(a, Raise)}
        named = {event for t in transitions for event in t.events}
        chart = Chart(
            name=name,
            sha256=sha256,
            nodes=nodes,
            states=tuple(n.id for n in nodes if n.kind not in (Kind.ROOT, Kind.HISTORY)),
            events=frozenset(e for e in named if not e.startswith("done.state.") and e not in raised),
            guards=frozenset(self.guards),
            guard_order=tuple(self.guards),
            targets=frozenset(a.target for a in actions if isinstance(a, Send)) - {"timer"},
            wildcards=self.wildcards,
        )
        check_chart(chart, self.label, raised)
        return chart

    def state(self, index: int) -> State:
        element = self.elements[index]
        parent = self.parents[index]
        ancestors: list[int] = []
        if index:
            ancestors.append(parent)
            while ancestors[-1]:
                ancestors.append(self.parents[ancestors[-1]])
        below = self.below[index]
        children = tuple(i for i in below if self.elements[i].tag != "history")
        kind = self.kind(element, bool(children))
        pieces: dict[str, list[Action]] = {"onentry": [], "onexit": []}
        for child in element.children:
            if child.tag in pieces:
                pieces[child.tag] += self.actions(child)
        transitions = [c for c in element.children if c.tag == "transition"]
        depth = element.attributes.get("type", "shallow") if kind is Kind.HISTORY else "shallow"
        if depth not in ("shallow", "deep"):
            raise self.error(element, f"history type {quoted(depth)} is neither shallow nor deep")
        return State(
            index=index,
            id=element.attributes.get("id", ""),
            kind=kind,
            parent=parent,
            ancestors=tuple(ancestors),
            children=children,
            histories=tuple(i for i in below if self.elements[i].tag == "history"),
            deep=depth == "deep",
            initial=self.initial(element, index, kind, children),
            transitions=() if kind is Kind.HISTORY else tuple(self.transition(t, index) for t in transitions),
            onentry=tuple(pieces["onentry"]),
            onexit=tuple(pieces["onexit"]),
            line=element.line,
        )

    def kind(self, element: Element, has_children: bool) -> Kind:
        if element.tag == "parallel" and not has_children:
            raise self.error(element, "a parallel state needs regions")
        if element.tag == "state" and not has_children:
            return Kind.ATOMIC
        return Kind(element.tag)

    def initial(
        self, element: Element, index: int, kind: Kind, children: tuple[int, ...]
    ) -> Transition | None:
        """How a compound state or the root is entered, or where a history leads the first time."""
        given = [c for c in element.children if c.tag == "initial"]
        named = element.attributes.get("initial")
        if kind is Kind.HISTORY:
            return self.default(element, index)
        if kind not in (Kind.COMPOUND, Kind.ROOT):
            if given or named is not None:
                raise self.error(element, "only a state with child states has an initial state")
            return None
        if not children:
            raise self.error(element, "there are no states")
        if len(given) + (named is not None) > 1:
            raise self.error(element, "more than one initial state")
        if given:
            return self.default(given[0], index)
        targets = self.targets(element, named) if named is not None else children[:1]
        return Transition(index, (), None, None, targets, False, (), element.line)

    def default(self, element: Element, index: int) -> Transition:
        """The one transition of `<initial>` or `<history>`: a target, no event, no condition."""
        if len(element.children) != 1:
            raise self.error(element, "exactly one transition is needed here")
        child = element.children[0]
        if {"event", "cond"} & set(child.attributes):
            raise self.error(child, f"no event or cond is allowed inside <{element.tag}>")
        transition = self.transition(child, index)
        if not transition.targets:
            raise self.error(child, f"a target is needed inside <{element.tag}>")
        return transition

    def transition(self, element: Element, source: int) -> Transition:
        attributes = element.attributes
        guard, inside = self.condition(element, attributes.get("cond"))
        kind = attributes.get("type", "external")
        if kind not in ("external", "internal"):
            raise self.error(element, f"type {quoted(kind)} is neither external nor internal")
        target = attributes.get("target")
        return Transition(
            source=source,
            events=self.events(element, attributes["event"]) if "event" in attributes else (),
            guard=guard,
            inside=inside,
            targets=self.targets(element, target) if target is not None else (),
            internal=kind == "internal",
            actions=tuple(self.actions(element)),
            line=element.line,
            comment=element.comment,
        )

    def condition(self, element: Element, text: str | None) -> tuple[str | None, int | None]:
        if text is None:
            return None, None
        if match := _IN.fullmatch(text):
            return None, self.resolve(element, match[1])
        if not _IDENTIFIER.fullmatch(text):
            raise self.error(element, f"cond {quoted(text)} is neither one guard name nor In('id')")
        self.guards[text] = None
        return text, None

    def events(self, element: Element, text: str) -> tuple[str, ...]:
        names = text.split()
        for name in names:
            if self.wildcards and (name == "*" or name.endswith(".*")):
                continue
            if not _EVENT.fullmatch(name):
                raise self.error(element, f"event {quoted(name)} is not a plain event name (no wildcards)")
        if not names:
            raise self.error(element, "event is empty")
        return tuple(n if n == "*" else n.removesuffix(".*") for n in names)

    def resolve(self, element: Element, name: str) -> int:
        if name not in self.numbers:
            raise self.error(element, f"there is no state {quoted(name)}")
        return self.numbers[name]

    def targets(self, element: Element, text: str) -> tuple[int, ...]:
        if not text.split():
            raise self.error(element, "target is empty")
        return tuple(self.resolve(element, name) for name in text.split())

    def actions(self, element: Element) -> list[Action]:
        return [self.action(child) for child in element.children]

    def action(self, element: Element) -> Action:
        attributes = element.attributes
        event = attributes.get("event", "")
        if not _EVENT.fullmatch(event):
            raise self.error(element, f"event {quoted(event)} is not a plain event name")
        if element.tag == "raise":
            return Raise(event)
        target = attributes.get("target", "")
        if not re.fullmatch(r"#_[a-z_]+", target):
            raise self.error(element, f'target {quoted(target)} is not of the form "#_actor"')
        delay = attributes.get("delay")
        if delay is None:
            return Send(target[2:], event)
        match = _DELAY.fullmatch(delay)
        if match is None:
            raise self.error(element, f"delay {quoted(delay)} is not a number with unit s or ms")
        if target != "#_timer":
            raise self.error(element, "only a send to #_timer has a delay")
        seconds = float(match[1]) / (1000 if match[2] == "ms" else 1)
        if not seconds <= MAX_DELAY:
            raise self.error(element, f"delay {quoted(delay)} is longer than {MAX_DELAY} seconds")
        return Send("timer", event, seconds)
