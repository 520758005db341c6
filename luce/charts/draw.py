"""Draws a chart as Graphviz DOT text, from the loaded chart, so a picture can never differ from what runs.

Compound states are clusters; a region of a parallel state has a dashed frame. Arrows carry `event [guard] / sends`.
Transitions without a target are listed inside their state, as in UML, and so are entry and exit actions. A comment
that stands before a transition in the file becomes the arrow's tooltip.
"""

from __future__ import annotations

import subprocess
from collections.abc import Collection, Iterator
from typing import Literal

from luce.charts.model import Action, Chart, Kind, Send, State, Transition
from luce.errors import ChartError, reason

__all__ = ["Picture", "picture", "to_dot"]

Picture = Literal["svg", "png"]
DRAWING_SECONDS = 60.0

# newrank: without it Graphviz drops the label of an arrow between two ranks that are level.
_HEADER = """\
  compound=true; rankdir=TB; newrank=true; fontname="Helvetica"; fontsize=11; labeljust=l;
  node [shape=box, style="rounded,filled", fillcolor=white, fontname="Helvetica", fontsize=10];
  edge [fontname="Helvetica", fontsize=9, arrowsize=0.7];
"""
_ACTIVE = "gold"


def to_dot(chart: Chart, active: Collection[str] = (), *, ids: bool = False) -> str:
    """The chart as one DOT digraph. States in `active` are filled, so a running machine can be shown.

    Args:
        ids: what is drawn of a state gets the id `state-NAME`, for those who work on the picture.
    """
    root = chart.nodes[0]
    lines = [f"digraph {_quote(chart.name)} {{", _HEADER.rstrip()]
    for child in root.children:
        lines += _state(chart, chart.nodes[child], active, "  ", ids)
    lines += _initial(chart, root, "  ")
    for node in chart.nodes:
        for transition in node.transitions:
            lines += _arrows(chart, node, transition)
    return "\n".join([*lines, "}", ""])


def picture(dot: str, kind: Picture) -> bytes:
    """DOT text as a file with a picture, by Graphviz' `dot`.

    Raises:
        ChartError: there is no `dot`, or it cannot draw this.
    """
    try:
        done = subprocess.run(
            ["dot", f"-T{kind}"],
            input=dot.encode(),
            capture_output=True,
            timeout=DRAWING_SECONDS,
            check=False,
        )
    except FileNotFoundError:
        raise ChartError(
            "Graphviz is needed for a picture: install it (apt-get install graphviz), or write a .dot file"
        ) from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ChartError(f"dot: {reason(error)}") from None
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines() or [f"exit status {done.returncode}"]
        raise ChartError(f"dot: {said[0]}")
    return done.stdout


def _state(chart: Chart, node: State, active: Collection[str], indent: str, ids: bool) -> Iterator[str]:
    fill = _ACTIVE if node.id in active else "white"
    label = _quote("\n".join([node.id, *_inside(node)]), left=len(_inside(node)) > 0)
    if not node.children:
        shape = ", peripheries=2" if node.kind is Kind.FINAL else ""
        name = f", id={_quote('state-' + node.id)}" if ids else ""
        yield f"{indent}{_quote(node.id)} [label={label}, fillcolor={fill}{shape}{name}];"
        return
    region = chart.nodes[node.parent].kind is Kind.PARALLEL
    style = "rounded,dashed" if region else "rounded"
    yield f"{indent}subgraph {_quote('cluster_' + node.id)} {{"
    yield f'{indent}  label={label}; style="{style}"; color={"goldenrod" if node.id in active else "gray40"};'
    if ids:
        yield f"{indent}  id={_quote('state-' + node.id)};"
    for child in node.children:
        yield from _state(chart, chart.nodes[child], active, indent + "  ", ids)
    for history in node.histories:
        name, letter = chart.nodes[history].id, "H*" if chart.nodes[history].deep else "H"
        yield f"{indent}  {_quote(name)} [label={_quote(letter)}, shape=circle];"
    yield from _initial(chart, node, indent + "  ")
    yield f"{indent}}}"


def _initial(chart: Chart, node: State, indent: str) -> Iterator[str]:
    """The black dot and its arrows to what is entered by default."""
    if node.initial is None or node.kind is Kind.HISTORY:
        return
    dot = _quote(f"initial of {node.id or chart.name}")
    yield f"{indent}{dot} [shape=point, width=0.1, fillcolor=black];"
    for target in node.initial.targets:
        yield f"{indent}{dot} -> {_end(chart, chart.nodes[target], 'lhead')};"


def _inside(node: State) -> list[str]:
    """Entry and exit actions and transitions without a target."""
    lines = [f"entry / {_actions(node.onentry)}"] if node.onentry else []
    lines += [f"exit / {_actions(node.onexit)}"] if node.onexit else []
    return lines + [_label(t) for t in node.transitions if not t.targets]


def _arrows(chart: Chart, node: State, transition: Transition) -> Iterator[str]:
    tail, *tail_attributes = _end(chart, node, "ltail").split(" ", 1)
    for target in transition.targets:
        head, *head_attributes = _end(chart, chart.nodes[target], "lhead").split(" ", 1)
        attributes = [f"label={_quote(_label(transition, chart))}"]
        attributes += [a.strip("[]") for a in (*tail_attributes, *head_attributes)]
        if transition.comment:
            attributes.append(f"tooltip={_quote(transition.comment)}")
        yield f"  {tail} -> {head} [{', '.join(attributes)}];"


def _end(chart: Chart, node: State, side: str) -> str:
    """One end of an arrow: the node, or a node inside the cluster with the arrow clipped at its frame."""
    if not node.children:
        return _quote(node.id)
    inner = node
    while inner.children:
        inner = chart.nodes[inner.children[0]]
    return f"{_quote(inner.id)} [{side}={_quote('cluster_' + node.id)}]"


def _label(transition: Transition, chart: Chart | None = None) -> str:
    label = " ".join(transition.events)
    if transition.guard is not None:
        label += f" [{transition.guard}]"
    if transition.inside is not None and chart is not None:
        label += f" [In {chart.nodes[transition.inside].id}]"
    if transition.actions:
        label += f" / {_actions(transition.actions)}"
    return label.strip()


def _actions(actions: tuple[Action, ...]) -> str:
    return ", ".join(_action(action) for action in actions)


def _action(action: Action) -> str:
    if not isinstance(action, Send):
        return f"raise {action.event}"
    if action.target != "timer":
        return f"{action.target}!{action.event}"
    return f"stop {action.event}" if action.delay is None else f"{action.event} in {action.delay:g} s"


def _quote(text: str, *, left: bool = False) -> str:
    """A DOT string; lines are centred, or set to the left."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    escaped = escaped.replace("\n", "\\l" if left else "\\n")
    return f'"{escaped}{chr(92) + "l" if left else ""}"'
