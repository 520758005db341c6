"""``luce charts explore`` without a chart: requests, step loop and encoder together, as the tests explore them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import attrs

from luce.actors.chart_fit import fits
from luce.actors.protocol import FED
from luce.charts.explorer import Fault
from luce.charts.loader import load_chart
from luce.charts.model import Chart
from luce.cli.charts import TogetherFlags, hint
from luce.composition.defects import DEFECTS
from luce.composition.options import Options
from luce.composition.scenarios import THREE_REQUESTS, TWO_REQUESTS
from luce.composition.verdict import MOST_STATES, judge, way_to
from luce.errors import ChartError, ConfigError, quoted

__all__ = ["together"]

CHARTS = ("request", "loop", "encoder")
DEPTHS = (1, 2)
_SCENARIOS = {**TWO_REQUESTS, **THREE_REQUESTS}


def together(flags: TogetherFlags, to: str | None) -> Iterator[str]:
    """Lines, as they are found.

    Args:
        to: CHART.STATE to look for; nothing is said of the rest then.

    Raises:
        ChartError: a rule is broken, not all could be visited, the state is not reached, or a changed chart does not
            fit its actor.
        ConfigError: of a flag.
    """
    charts = _changed(flags.changed)
    goal = None if to is None else _goal(to, charts)
    states = edges = count = 0
    for name, options in _chosen(flags):
        verdict = judge(attrs.evolve(options, charts=tuple(charts.items())), MOST_STATES)
        found = verdict.found
        count, states, edges = count + 1, states + found.states, edges + found.edges
        if goal is not None:
            if (way := way_to(verdict, *goal)) is not None:
                yield from _told(name, way)
                return
            continue
        if verdict.fault is not None:
            yield from _told(name, verdict.fault)
            raise ChartError(f"{name}: {verdict.fault.message}")
        if not found.complete:
            raise ChartError(f"{name}: more than {MOST_STATES:,} states, too many to visit all")
        yield f"{name}: {found.states:,} states, {found.edges:,} edges"
    if goal is not None:
        raise ChartError(f"no {goal[0]} comes into {goal[1]}, in {states:,} states of {_counted(count)}")
    yield f"nothing is wrong in {states:,} states and {edges:,} edges of {_counted(count)}"


def _told(name: str, fault: Fault) -> Iterator[str]:
    yield from str(attrs.evolve(fault, message=f"{name}: {fault.message}")).splitlines()


def _counted(systems: int) -> str:
    return "1 system" if systems == 1 else f"{systems} systems"


def _chosen(flags: TogetherFlags) -> Iterator[tuple[str, Options]]:
    if flags.plant is not None:
        if flags.plant not in DEFECTS:
            there = f"There are {', '.join(DEFECTS)}"
            raise ConfigError(
                f"there is no defect {quoted(flags.plant)}{hint(flags.plant, tuple(DEFECTS))} {there}",
                flag="--plant",
            )
        if flags.scenario or flags.depth:
            raise ConfigError(
                "a defect has a scenario of its own; leave out --scenario and --depth", flag="--plant"
            )
        options, _ = DEFECTS[flags.plant]
        yield f"{flags.plant} planted", attrs.evolve(options, planted=frozenset([flags.plant]))
        return
    for name in flags.scenario:
        if name not in _SCENARIOS:
            raise ConfigError(
                f"there is no scenario {quoted(name)}{hint(name, tuple(_SCENARIOS))} "
                "luce charts explore lists them",
                flag="--scenario",
            )
    for name in flags.scenario or _SCENARIOS:
        for depth in DEPTHS if flags.depth is None else (flags.depth,):
            yield f"{name}, depth {depth}", attrs.evolve(_SCENARIOS[name], depth=depth)


def _changed(files: Sequence[Path]) -> dict[str, Chart]:
    found: dict[str, Chart] = {}
    for file in files:
        chart = load_chart(file)
        if chart.name not in CHARTS:
            raise ConfigError(
                f"{file} is named {quoted(chart.name)}; only {', '.join(CHARTS)} are explored together",
                flag="--changed",
            )
        if chart.name in found:
            raise ConfigError(f"two of them are named {quoted(chart.name)}", flag="--changed")
        found[chart.name] = chart
    own = {name: load_chart(name) for name in FED}
    for chart in found.values():
        fits(chart, {**own, **found})
    return found


def _goal(to: str, charts: dict[str, Chart]) -> tuple[str, str]:
    name, _, state = to.partition(".")
    if name not in CHARTS or not state:
        raise ConfigError(
            f"write it as request.decoding, with one of {', '.join(CHARTS)}, not {quoted(to)}", flag="--to"
        )
    chart = charts.get(name) or load_chart(name)
    if state not in chart.states:
        raise ConfigError(f"{name} has no state {quoted(state)}{hint(state, chart.states)}", flag="--to")
    return name, state
