"""Writes the tables of `docs/reference` that are the program's own words: charts and flags.

From the repository root::

    python -m tools.reference_tables

Each stands between two comments in its page; the rest of the page is left alone. `tests/test_docs.py` fails when a
page is not what this writes.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from luce.charts.explorer import reachable
from luce.charts.loader import load_chart
from luce.charts.model import Action, Chart, Kind, Send, State, Transition
from luce.cli.main import COMMANDS, arguments_of, build_app

__all__ = ["PAGES", "filled", "main"]

REFERENCE = Path(__file__).resolve().parent.parent / "docs" / "reference"
CHARTS = ("request", "loop", "encoder", "server", "block", "prefix_entry")


def main() -> int:
    for page in PAGES:
        page.write_text(filled(page))
    return 0


def filled(page: Path) -> str:
    """The page with its tables as they ought to be."""
    text = page.read_text()
    for name, write in PAGES[page].items():
        start, end = f"<!-- {name}: written by tools/reference_tables.py -->", f"<!-- end of {name} -->"
        before, found, rest = text.partition(start)
        _, found_end, after = rest.partition(end)
        assert found and found_end, f"{page} has no place for {name}"
        text = f"{before}{start}\n\n{write()}\n{end}{after}"
    return text


def _table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    heads = list(heads)
    yield f"| {' | '.join(heads)} |"
    yield "|" + "---|" * len(heads)
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"


# Charts


def _chart(name: str) -> str:
    chart = load_chart(name)
    lines = [
        f"{len(chart.states)} states, {len(chart.events)} events, {len(chart.guards)} guards; "
        f"{len(reachable(chart))} configurations can be reached.",
        "",
        *_table(("state", "kind", "on entry", "on exit"), _states(chart)),
        "",
        *_table(("in", "event", "if", "to", "does"), _transitions(chart)),
    ]
    return "\n".join(lines) + "\n"


def _states(chart: Chart) -> Iterator[tuple[str, ...]]:
    for node in chart.nodes[1:]:
        depth = len(node.ancestors) - 1
        kind = {Kind.COMPOUND: f"starts in `{_initial(chart, node)}`"}.get(node.kind, node.kind.value)
        if chart.nodes[node.parent].kind is Kind.PARALLEL:
            kind = f"region, {kind}"
        yield "· " * depth + f"`{node.id}`", kind, _actions(node.onentry), _actions(node.onexit)


def _initial(chart: Chart, node: State) -> str:
    return " ".join(chart.nodes[t].id for t in node.initial.targets) if node.initial else ""


def _transitions(chart: Chart) -> Iterator[tuple[str, ...]]:
    for node in chart.nodes[1:]:
        for transition in node.transitions:
            yield (
                f"`{node.id}`",
                ", ".join(f"`{event}`" for event in transition.events) or "at once",
                _condition(chart, transition),
                " ".join(f"`{chart.nodes[t].id}`" for t in transition.targets) or "stays",
                _actions(transition.actions),
            )


def _condition(chart: Chart, transition: Transition) -> str:
    if transition.inside is not None:
        return f"`In('{chart.nodes[transition.inside].id}')`"
    return f"`{transition.guard}`" if transition.guard is not None else ""


def _actions(actions: tuple[Action, ...]) -> str:
    return ", ".join(_action(action) for action in actions)


def _action(action: Action) -> str:
    if not isinstance(action, Send):
        return f"raises `{action.event}`"
    if action.target != "timer":
        return f"`{action.event}` to {action.target}"
    return f"stops `{action.event}`" if action.delay is None else f"`{action.event}` in {action.delay:g} s"


# Flags


def _flags(command: tuple[str, ...]) -> str:
    arguments = [one for one in arguments_of(build_app(None), command) if one.parameter.help]
    return "\n".join(_table(("flag", "default", "what it says"), map(_flag, arguments))) + "\n"


def _flag(argument: Any) -> tuple[str, str, str]:
    field = argument.field_info
    default = "" if field.required or field.default in (None, ()) else str(field.default)
    if field.default is False:
        default = "off"
    return (
        ", ".join(f"`{name}`" for name in argument.names),
        default,
        re.sub(r"\s+", " ", argument.parameter.help),
    )


PAGES: dict[Path, dict[str, Callable[[], str]]] = {
    REFERENCE / "statecharts.md": {name: lambda name=name: _chart(name) for name in CHARTS},  # type: ignore[misc]
    REFERENCE / "command-line.md": {
        " ".join(command): lambda command=command: _flags(command)  # type: ignore[misc]
        for command in COMMANDS
    },
}

if __name__ == "__main__":
    sys.exit(main())
