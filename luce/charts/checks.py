"""What a chart must satisfy beyond being spelt right. Run once at load time."""

from __future__ import annotations

from itertools import combinations

from luce.charts.model import Chart, Kind, Send, State, Transition
from luce.errors import ChartError, quoted

__all__ = ["check_chart", "matches"]


def matches(descriptor: str, event: str) -> bool:
    """SCXML section 3.12.1: a descriptor matches itself and any event that continues it by whole tokens."""
    return descriptor in ("*", event) or event.startswith(descriptor + ".")


def check_chart(chart: Chart, label: str, raised: set[str]) -> None:
    """Raises ChartError for the first fault found. `raised` holds the events that the chart gives itself."""
    for node in chart.nodes:
        if node.initial is not None:
            _check_default(chart, label, node)
        for transition in node.transitions:
            _check_targets(chart, label, transition)
            if transition.internal and not chart.wildcards:
                _check_internal(chart, label, transition)
            if not transition.events and not transition.targets:
                raise _fault(label, transition.line, "a transition needs an event or a target")
    if chart.wildcards:
        return
    _check_reachable(chart, label)
    _check_events(chart, label, raised)
    for node in chart.nodes:
        _check_shadowed(label, node)
        _check_choice(label, node)
        _check_timers(chart, label, node)


def _fault(label: str, line: int, message: str) -> ChartError:
    return ChartError(f"{label}:{line}: {message}")


def _check_default(chart: Chart, label: str, node: State) -> None:
    """An initial transition stays below its state; a history leads into its parent."""
    transition = node.initial
    assert transition is not None
    _check_targets(chart, label, transition)
    top = node.parent if node.kind is Kind.HISTORY else node.index
    for target in transition.targets:
        found = chart.nodes[target]
        if top not in found.ancestors or found.index == node.index:
            raise _fault(
                label,
                transition.line,
                f"{quoted(found.id)} is not inside {quoted(chart.nodes[top].id or 'the chart')}",
            )


def _check_targets(chart: Chart, label: str, transition: Transition) -> None:
    """Several targets must be active together: they lie in different regions of one parallel state."""
    for one, other in combinations(transition.targets, 2):
        a, b = chart.nodes[one], chart.nodes[other]
        common = next((s for s in a.ancestors if s in b.ancestors), 0)
        nested = one == other or one in b.ancestors or other in a.ancestors
        if nested or chart.nodes[common].kind is not Kind.PARALLEL:
            raise _fault(
                label, transition.line, f"targets {quoted(a.id)} and {quoted(b.id)} cannot be active together"
            )


def _check_internal(chart: Chart, label: str, transition: Transition) -> None:
    """`type="internal"` has an effect only from a compound state to states inside it."""
    source = chart.nodes[transition.source]
    inside = all(source.index in chart.nodes[target].ancestors for target in transition.targets)
    if source.kind is not Kind.COMPOUND or not transition.targets or not inside:
        raise _fault(label, transition.line, 'type="internal" needs targets inside its own compound state')


def _check_reachable(chart: Chart, label: str) -> None:
    """Every state must be entered by some path, guards aside (`explorer.reachable` is exact)."""
    seen: set[int] = {0}
    work: list[int] = list(chart.nodes[0].initial.targets if chart.nodes[0].initial else ())
    while work:
        node = chart.nodes[work.pop()]
        if node.index in seen:
            continue
        seen.add(node.index)
        work.extend(node.ancestors)
        if node.kind is Kind.PARALLEL:
            work.extend(node.children)
        if node.kind in (Kind.COMPOUND, Kind.HISTORY) and node.initial is not None:
            work.extend(node.initial.targets)
        for transition in node.transitions:
            work.extend(transition.targets)
    for node in chart.nodes:
        if node.index not in seen:
            raise _fault(label, node.line, f"state {quoted(node.id)} can never be entered")


def _check_events(chart: Chart, label: str, raised: set[str]) -> None:
    """SCXML matches events by prefix. Here no name may be a prefix of another, so a match is equality."""
    named: dict[str, int] = {}
    for node in chart.nodes:
        for transition in node.transitions:
            for event in transition.events:
                named.setdefault(event, transition.line)
    kinds = {node.id: node.kind for node in chart.nodes[1:]}
    for event, line in named.items():
        shorter = event.rpartition(".")[0]
        while shorter:
            if shorter in named:
                message = f"event {quoted(shorter)} would also match {quoted(event)}: rename one"
                raise _fault(label, named[shorter], message)
            shorter = shorter.rpartition(".")[0]
        if event.startswith("done.state."):
            if kinds.get(event.removeprefix("done.state.")) not in (Kind.COMPOUND, Kind.PARALLEL):
                raise _fault(label, line, f"{quoted(event)} names no state that can be done")
        elif event.split(".")[0] in ("done", "error"):
            raise _fault(label, line, f"event {quoted(event)} is reserved by SCXML")
    for event in sorted(raised - set(named)):
        raise _fault(label, 1, f"event {quoted(event)} is raised and never handled")


def _check_shadowed(label: str, node: State) -> None:
    """A transition after an unconditional one for the same event would never be taken."""
    settled: set[str] = set()
    for transition in node.transitions:
        for event in transition.events:
            if event in settled:
                raise _fault(
                    label,
                    transition.line,
                    f"an earlier transition of {quoted(node.id)} takes {quoted(event)}",
                )
        if transition.guard is None and transition.inside is None:
            settled.update(transition.events)


def _check_choice(label: str, node: State) -> None:
    """Eventless transitions make a choice that is left at once. Guards are read when an event comes; a state
    that waited for one to turn true would make an event of a change that no message brought.
    """
    eventless = [t for t in node.transitions if not t.events]
    if not eventless:
        return
    settled = eventless[-1].guard is None and eventless[-1].inside is None
    if node.kind is not Kind.ATOMIC or len(eventless) != len(node.transitions) or not settled:
        raise _fault(
            label,
            node.line,
            f"{quoted(node.id)}: a choice is a state without children whose transitions have "
            "no events, the last of them no condition",
        )


def _check_timers(chart: Chart, label: str, node: State) -> None:
    """A state arms its timer on entry and stops it on exit, so no timer outlives what it waits for."""
    armed = {a.event for a in node.onentry if isinstance(a, Send) and a.target == "timer"}
    stopped = {a.event for a in node.onexit if isinstance(a, Send) and a.target == "timer"}
    if armed != stopped:
        names = ", ".join(sorted(armed ^ stopped))
        raise _fault(
            label, node.line, f"{quoted(node.id)} must arm the timer {names} on entry and stop it on exit"
        )
    for event in armed:
        if event not in chart.events:
            raise _fault(label, node.line, f"nothing handles the timer event {quoted(event)}")
    loose = [
        t for t in node.transitions if any(isinstance(a, Send) and a.target == "timer" for a in t.actions)
    ]
    delays = [a for a in node.onentry if isinstance(a, Send) and a.target == "timer" and a.delay is None]
    delays += [a for a in node.onexit if isinstance(a, Send) and a.target == "timer" and a.delay is not None]
    if loose or delays:
        raise _fault(
            label, node.line, f"{quoted(node.id)}: timers are armed in onentry and stopped in onexit only"
        )
