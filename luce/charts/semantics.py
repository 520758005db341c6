"""What one event does to a configuration: the algorithm of W3C SCXML 1.0, Appendix D, as pure functions.

The names of the functions and their order follow the appendix, so the two can be read side by side. Nothing
here is fast or needs to be: the interpreter keeps every answer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping

import attrs

from luce.charts.checks import matches
from luce.charts.model import Action, Chart, Kind, Raise, Send, State, Transition
from luce.errors import ChartError

__all__ = ["Ask", "Macrostep", "run_macrostep"]

Ask = Callable[[str], bool]
"""Answers for one guard name. Within one macrostep it must answer the same name the same way."""

_MAX_MICROSTEPS = 1000


@attrs.frozen
class Macrostep:
    """The outcome of one event, or of entering the chart."""

    active: frozenset[int]
    history: tuple[tuple[int, tuple[int, ...]], ...]
    """What each history state remembers, sorted by its number."""
    sends: tuple[Send, ...]
    finished: bool


def run_macrostep(
    chart: Chart,
    active: Iterable[int],
    history: Mapping[int, tuple[int, ...]],
    event: str | None,
    ask: Ask,
) -> Macrostep | None:
    """Handles one event and all that follows inside the machine; `event` None enters the chart.

    Returns None when no transition is enabled, that is when the event is illegal here.
    """
    run = _Run(chart, set(active), dict(history), ask)
    if event is None:
        initial = chart.nodes[0].initial
        assert initial is not None
        run.enter_states([initial])
    else:
        enabled = run.select_transitions(event)
        if not enabled:
            return None
        run.microstep(enabled)
    run.settle()
    return Macrostep(
        frozenset(run.active), tuple(sorted(run.history.items())), tuple(run.sends), run.finished
    )


class _Run:
    """One macrostep. Sets of states are sets of numbers; a smaller number is earlier in document order."""

    def __init__(self, chart: Chart, active: set[int], history: dict[int, tuple[int, ...]], ask: Ask) -> None:
        self.chart = chart
        self.nodes = chart.nodes
        self.active = active
        self.history = history
        self.ask = ask
        self.sends: list[Send] = []
        self.internal: deque[str] = deque()
        self.finished = False

    def settle(self) -> None:
        """Eventless transitions and internal events, until neither is left (mainEventLoop)."""
        for _ in range(_MAX_MICROSTEPS):
            if self.finished:
                return
            enabled = self.select_transitions(None)
            if not enabled:
                if not self.internal:
                    return
                enabled = self.select_transitions(self.internal.popleft())
            if enabled:
                self.microstep(enabled)
        raise ChartError(f"{self.chart.name}: no end after {_MAX_MICROSTEPS} microsteps of one event")

    # Selecting

    def select_transitions(self, event: str | None) -> list[Transition]:
        enabled: dict[Transition, None] = {}
        for index in sorted(self.active):
            node = self.nodes[index]
            if node.kind not in (Kind.ATOMIC, Kind.FINAL):
                continue
            for source in (index, *node.ancestors):
                transition = next(
                    (t for t in self.nodes[source].transitions if self.is_enabled(t, event)), None
                )
                if transition is not None:
                    enabled[transition] = None
                    break
        return self.remove_conflicting(list(enabled))

    def is_enabled(self, transition: Transition, event: str | None) -> bool:
        if event is None:
            if transition.events:
                return False
        elif not any(matches(descriptor, event) for descriptor in transition.events):
            return False
        if transition.inside is not None:
            return transition.inside in self.active
        return transition.guard is None or self.ask(transition.guard)

    def remove_conflicting(self, enabled: list[Transition]) -> list[Transition]:
        """Of two transitions that leave a common state the inner one wins, else the earlier one."""
        kept: list[Transition] = []
        for new in enabled:
            leaves = self.exit_set([new])
            beaten: list[Transition] = []
            preempted = False
            for old in kept:
                if leaves & self.exit_set([old]):
                    if old.source in self.nodes[new.source].ancestors:
                        beaten.append(old)
                    else:
                        preempted = True
                        break
            if not preempted:
                kept = [t for t in kept if t not in beaten] + [new]
        return kept

    def exit_set(self, transitions: list[Transition]) -> set[int]:
        states: set[int] = set()
        for transition in transitions:
            if transition.targets:
                domain = self.domain(transition)
                states |= {s for s in self.active if domain in self.nodes[s].ancestors}
        return states

    def domain(self, transition: Transition) -> int:
        """The innermost state that the transition stays inside of."""
        targets = self.effective_targets(transition)
        source = self.nodes[transition.source]
        if (
            transition.internal
            and source.kind in (Kind.COMPOUND, Kind.ROOT)
            and all(source.index in self.nodes[t].ancestors for t in targets)
        ):
            return source.index
        for ancestor in source.ancestors:
            if self.nodes[ancestor].kind in (Kind.COMPOUND, Kind.ROOT) and all(
                ancestor in self.nodes[t].ancestors for t in targets
            ):
                return ancestor
        return 0

    def effective_targets(self, transition: Transition) -> list[int]:
        """The targets, with histories replaced by what they remember or lead to."""
        found: dict[int, None] = {}
        for target in transition.targets:
            node = self.nodes[target]
            if node.kind is not Kind.HISTORY:
                found[target] = None
            elif target in self.history:
                found.update(dict.fromkeys(self.history[target]))
            elif node.initial is not None:
                found.update(dict.fromkeys(self.effective_targets(node.initial)))
        return list(found)

    # Taking

    def microstep(self, enabled: list[Transition]) -> None:
        self.exit_states(enabled)
        for transition in enabled:
            self.execute(transition.actions)
        self.enter_states(enabled)

    def exit_states(self, enabled: list[Transition]) -> None:
        leaving = sorted(self.exit_set(enabled), reverse=True)
        for index in leaving:
            for history in self.nodes[index].histories:
                self.history[history] = self.remember(self.nodes[history])
        for index in leaving:
            self.execute(self.nodes[index].onexit)
            self.active.discard(index)

    def remember(self, history: State) -> tuple[int, ...]:
        if history.deep:
            return tuple(
                s
                for s in sorted(self.active)
                if history.parent in self.nodes[s].ancestors
                and self.nodes[s].kind in (Kind.ATOMIC, Kind.FINAL)
            )
        return tuple(s for s in sorted(self.active) if self.nodes[s].parent == history.parent)

    def enter_states(self, enabled: list[Transition]) -> None:
        entry = _Entry(self)
        for transition in enabled:
            if transition.targets:
                entry.add_transition(transition)
        for index in sorted(entry.states):
            node = self.nodes[index]
            self.active.add(index)
            self.execute(node.onentry)
            if index in entry.by_default and node.initial is not None:
                self.execute(node.initial.actions)
            self.execute(entry.history_actions.get(index, ()))
            if node.kind is Kind.FINAL:
                self.done(node)

    def done(self, final: State) -> None:
        if final.parent == 0:
            self.finished = True
            return
        parent = self.nodes[final.parent]
        self.internal.append(f"done.state.{parent.id}")
        grandparent = self.nodes[parent.parent]
        if grandparent.kind is Kind.PARALLEL and all(self.in_final(c) for c in grandparent.children):
            self.internal.append(f"done.state.{grandparent.id}")

    def in_final(self, index: int) -> bool:
        node = self.nodes[index]
        if node.kind is Kind.PARALLEL:
            return all(self.in_final(child) for child in node.children)
        return any(self.nodes[c].kind is Kind.FINAL and c in self.active for c in node.children)

    def execute(self, actions: Iterable[Action]) -> None:
        for action in actions:
            if isinstance(action, Raise):
                self.internal.append(action.event)
            else:
                self.sends.append(action)


class _Entry:
    """Which states a set of transitions enters (computeEntrySet)."""

    def __init__(self, run: _Run) -> None:
        self.run = run
        self.nodes = run.nodes
        self.states: set[int] = set()
        self.by_default: set[int] = set()
        self.history_actions: dict[int, tuple[Action, ...]] = {}

    def add_transition(self, transition: Transition) -> None:
        for target in transition.targets:
            self.add_descendants(target)
        # Entering the chart or a state by default: the domain is the state that owns the initial transition.
        source = self.nodes[transition.source]
        domain = source.index if source.initial is transition else self.run.domain(transition)
        for target in self.run.effective_targets(transition):
            self.add_ancestors(target, domain)

    def add_descendants(self, index: int) -> None:
        node = self.nodes[index]
        if node.kind is Kind.HISTORY:
            remembered = self.run.history.get(index)
            if remembered is None:
                assert node.initial is not None
                self.history_actions[node.parent] = node.initial.actions
                remembered = node.initial.targets
            for target in remembered:
                self.add_descendants(target)
            for target in remembered:
                self.add_ancestors(target, node.parent)
            return
        self.states.add(index)
        if node.kind is Kind.COMPOUND:
            assert node.initial is not None
            self.by_default.add(index)
            for target in node.initial.targets:
                self.add_descendants(target)
            for target in node.initial.targets:
                self.add_ancestors(target, index)
        elif node.kind is Kind.PARALLEL:
            self.add_regions(node)

    def add_ancestors(self, index: int, top: int) -> None:
        for ancestor in self.nodes[index].ancestors:
            if ancestor == top:
                return
            self.states.add(ancestor)
            if self.nodes[ancestor].kind is Kind.PARALLEL:
                self.add_regions(self.nodes[ancestor])

    def add_regions(self, parallel: State) -> None:
        for child in parallel.children:
            if not any(child == s or child in self.nodes[s].ancestors for s in self.states):
                self.add_descendants(child)
