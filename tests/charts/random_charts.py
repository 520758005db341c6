"""Hypothesis strategies for small random charts with every construct of the subset."""

from __future__ import annotations

from xml.sax.saxutils import quoteattr

import attrs
from hypothesis import strategies as st

__all__ = ["EVENTS", "charts"]

EVENTS = ("a", "b", "c")
GUARDS = ("g", "h")


@attrs.define
class Node:
    """A state to be. Children of a parallel node are regions, so they are compound."""

    id: str
    kind: str  # state, parallel or final
    children: list[Node] = attrs.field(factory=list)
    history: str | None = None  # shallow or deep
    body: list[str] = attrs.field(factory=list)


@st.composite
def charts(draw: st.DrawFn) -> str:
    """The text of a chart of 3 to about 15 states, up to three levels deep."""
    names = iter(f"s{i}" for i in range(100))

    def grow(depth: int, kind: str) -> Node:
        node = Node(next(names), kind)
        if kind == "final" or (kind == "leaf"):
            node.kind = "state" if kind == "leaf" else kind
            return node
        if kind == "parallel":
            node.children = [grow(depth + 1, "state") for _ in range(2)]
        else:
            count = draw(st.integers(1, 3))
            node.children = [grow(depth + 1, draw(_kinds(depth))) for _ in range(count)]
        node.history = draw(st.sampled_from([None, None, "shallow", "deep"]))
        return node

    top = [grow(0, draw(_kinds(0))) for _ in range(draw(st.integers(2, 3)))]
    nodes = [n for root in top for n in _walk(root)]
    targets = [n.id for n in nodes] + [f"h_{n.id}" for n in nodes if n.history]
    for node in nodes:
        if node.kind != "final":
            for _ in range(draw(st.integers(0, 2))):
                node.body.append(_transition(draw, node, targets, [n.id for n in nodes]))
        for hook in ("onentry", "onexit"):
            if draw(st.integers(0, 9)) == 0:
                node.body.append(f'<{hook}><raise event="{draw(st.sampled_from(EVENTS))}"/></{hook}>')
    inside = "".join(_render(root) for root in top)
    return (
        '<scxml xmlns="http://www.w3.org/2005/07/scxml" version="1.0" name="random" datamodel="luce" '
        f'initial="{top[0].id}">{inside}</scxml>'
    )


def _kinds(depth: int) -> st.SearchStrategy[str]:
    # No parallel state at the top: python-statemachine stops when all regions of one are final.
    deeper = ["state", "parallel" if depth else "state"] if depth < 2 else []
    return st.sampled_from(["leaf", "leaf", "leaf", "final", *deeper])


def _transition(draw: st.DrawFn, source: Node, targets: list[str], states: list[str]) -> str:
    attributes = {}
    if draw(st.integers(0, 9)) > 0:
        attributes["event"] = " ".join(
            draw(st.lists(st.sampled_from(EVENTS), min_size=1, max_size=2, unique=True))
        )
    # Guards on eventless transitions are left out: python-statemachine also reads them before an event,
    # luce's loader allows them in choices only, where that makes no difference.
    condition = draw(st.sampled_from([None, None, "guard" if "event" in attributes else None, "In"]))
    if condition == "guard":
        attributes["cond"] = draw(st.sampled_from(GUARDS))
    elif condition == "In":
        attributes["cond"] = f"In('{draw(st.sampled_from(states))}')"
    if "event" not in attributes or draw(st.integers(0, 4)) > 0:
        attributes["target"] = draw(st.sampled_from(targets))
    below = {n.id for n in _walk(source)[1:]}
    if attributes.get("target") in below and source.kind == "state" and draw(st.booleans()):
        attributes["type"] = "internal"
    text = " ".join(f"{name}={quoteattr(value)}" for name, value in attributes.items())
    return f"<transition {text}/>"


def _walk(node: Node) -> list[Node]:
    return [node, *(n for child in node.children for n in _walk(child))]


def _render(node: Node) -> str:
    children = "".join(_render(child) for child in node.children)
    history = ""
    if node.history:
        leads_to = " ".join(c.id for c in node.children) if node.kind == "parallel" else node.children[-1].id
        history = (
            f'<history id="h_{node.id}" type="{node.history}"><transition target="{leads_to}"/></history>'
        )
    # Always written out: python-statemachine takes the first child that is not final, SCXML the first one.
    compound = node.kind == "state" and node.children
    initial = f' initial="{node.children[0].id}"' if compound else ""
    return f'<{node.kind} id="{node.id}"{initial}>{"".join(node.body)}{history}{children}</{node.kind}>'
