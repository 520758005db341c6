"""``luce charts check | explore | draw``: luce's statecharts, and chart files that somebody has changed."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Literal

import attrs
from cyclopts import Group, Parameter

from luce.charts.alone import answered, way_to
from luce.charts.draw import Picture, picture, to_dot
from luce.charts.explorer import reachable
from luce.charts.interpreter import Configuration, outcomes
from luce.charts.loader import chart_names, chart_path, load_chart
from luce.charts.model import Chart
from luce.cli.flags import FILE, NAME, ConfigFlags
from luce.cli.outputs import check_writable, same_file, writing
from luce.errors import ChartError, ConfigError, printable, quoted

__all__ = ["TogetherFlags", "check", "described", "draw", "explore", "hint"]

TOGETHER = Group("All charts together", sort_key=1)
PICTURES: dict[str, Picture] = {".svg": "svg", ".png": "png"}
"""What `draw` makes, by how the file's name ends."""
MAX_WAYS = 50_000
"""From one configuration to another, by event and guard answers. The request's chart has some 700."""

ChartSource = Annotated[
    str,
    NAME,
    Parameter(help="Name of one of luce's charts, as request, or path of a file, as ./request.scxml."),
]


def check(
    charts: Annotated[
        tuple[str, ...],
        NAME,
        Parameter(help="Names or paths of charts; without any: all charts of luce."),
    ] = (),
    /,
    *,
    config: ConfigFlags = ConfigFlags(),  # noqa: B008 - frozen
) -> None:
    """Load charts and compare them with the actors that run them. One line for each that is fine, and each fault."""
    from luce.actors.chart_fit import fits
    from luce.actors.protocol import FED

    loaded: dict[str, Chart] = {}
    sources: dict[str, str] = {}
    faults: list[ChartError] = []
    broken: set[str] = set()

    def load(source: str) -> Chart | None:
        if source in broken:
            return None
        try:
            return _load(source)
        except ChartError as error:
            faults.append(error)
            broken.add(source)
            return None

    for source in charts or chart_names():
        chart = load(source)
        if chart is not None and chart.name in loaded:
            raise ConfigError(f"two of them are named {chart.name!r}; check them one by one", flag="CHARTS")
        if chart is not None:
            loaded[chart.name], sources[chart.name] = chart, source
    # Charts speak with each other, so a changed one is compared with all, and all with it.
    speaking = {name: loaded.get(name) or load(name) for name in FED} if loaded.keys() & FED.keys() else {}
    actors = {name: chart for name, chart in speaking.items() if chart is not None}
    for name, chart in {**actors, **loaded}.items():
        try:
            if name in actors and len(actors) < len(speaking):
                verdict = "not compared with its actor: a chart that it may send to cannot be loaded"
            else:
                verdict = fits(chart, actors)
        except ChartError as error:
            source = sources.get(name, name)
            faults.append(error if source == name else ChartError(f"{source}: {error}"))
        else:
            if name in loaded:
                print(f"{name:<12} {_size(chart)}; {verdict}")
    if faults:
        raise ExceptionGroup("charts", faults)


@Parameter(name="*")
@attrs.frozen
class TogetherFlags:
    """What is explored where no chart is named."""

    scenario: Annotated[
        tuple[str, ...],
        NAME,
        Parameter(group=TOGETHER, negative="", help="One of the scenarios, by name; can be repeated."),
    ] = ()
    depth: Annotated[
        Literal[1, 2] | None, Parameter(group=TOGETHER, help="Steps launched ahead; by default both.")
    ] = None
    plant: Annotated[
        str | None, NAME, Parameter(group=TOGETHER, help="Defect to plant, in the scenario that shows it.")
    ] = None
    changed: Annotated[
        tuple[Path, ...],
        Parameter(group=TOGETHER, negative="", help="File of a chart to take instead of luce's own."),
    ] = ()


def explore(
    chart: Annotated[
        str | None,
        NAME,
        Parameter(
            help="Name of one of luce's charts, as request, or path of a file, as ./request.scxml; without one: "
            "requests, step loop and encoder together."
        ),
    ] = None,
    /,
    *,
    to: Annotated[
        str | None,
        NAME,
        Parameter(help="State to show a shortest way to; of charts together as request.decoding."),
    ] = None,
    together: TogetherFlags = TogetherFlags(),
    config: ConfigFlags = ConfigFlags(),  # noqa: B008
) -> None:
    """List every configuration of one chart alone, whatever its guards answer, and what is legal there; or visit every
    state of all charts together, in each scenario of the tests."""
    if chart is None:
        from luce.cli.charts_together import together as all_together

        lines = all_together(together, to)
    elif together != TogetherFlags():
        raise ConfigError("is of all charts together; leave out the chart", flag=_first_given(together))
    else:
        loaded = _load(chart)
        lines = described(loaded) if to is None else _way(loaded, to)
    for line in lines:
        print(line, flush=True)


def _first_given(flags: TogetherFlags) -> str:
    plain = TogetherFlags()
    return next(
        f"--{field.name}"
        for field in attrs.fields(TogetherFlags)
        if getattr(flags, field.name) != getattr(plain, field.name)
    )


def _way(chart: Chart, state: str) -> Iterator[str]:
    if state not in chart.states:
        raise ConfigError(
            f"{chart.name} has no state {quoted(state)}{hint(state, chart.states)}", flag="--to"
        )
    way = way_to(chart, state, limit=MAX_WAYS)
    if way is None:
        raise ChartError(f"{chart.name}: no way into {state} is found")
    yield from str(way).splitlines()


def draw(
    chart: ChartSource,
    /,
    *,
    active: Annotated[
        tuple[str, ...], NAME, Parameter(negative="", help="State to fill, as active; can be repeated.")
    ] = (),
    out: Annotated[
        Path | None,
        FILE,
        Parameter(
            help="File to write, a picture if it ends in .svg or .png; by default text on standard output."
        ),
    ] = None,
    config: ConfigFlags = ConfigFlags(),  # noqa: B008
) -> None:
    """Draw one chart as SVG or PNG with Graphviz' `dot`, or write it as text for Graphviz."""
    loaded = _load(chart)
    for state in active:
        if state not in loaded.states:
            raise ConfigError(
                f"{loaded.name} has no state {quoted(state)}{hint(state, loaded.states)}", flag="--active"
            )
    text = to_dot(loaded, active)
    if out is None:
        sys.stdout.write(text)
        return
    check_writable(out, "--out")
    if same_file(out, chart_path(chart) if chart in chart_names() else Path(chart)):
        raise ConfigError(f"{out} is the chart; name another file to write", flag="--out")
    kind = PICTURES.get(out.suffix.lower())
    content = text.encode() if kind is None else picture(text, kind)
    with writing(out, "--out"):
        out.write_bytes(content)
    what = "text for Graphviz" if kind is None else "a picture"
    print(printable(f"{out}: {what} of the chart {loaded.name}"))


def described(chart: Chart) -> Iterator[str]:
    """What :func:`explore` prints.

    Raises:
        ChartError: there is too much of it.
    """
    found = reachable(chart, limit=MAX_WAYS)
    events = sorted(chart.events)
    legal = {here: [event for event in events if _answers(here, event)] for here in found}
    pairs, fine = len(found) * len(events), sum(map(len, legal.values()))
    yield f"{chart.name}: {_size(chart)}; {_counted(len(found), 'configuration')} can be reached"
    yield f"of {pairs} pairs of configuration and event {fine} can be legal, {pairs - fine} never are"
    passed = [state for state in chart.states if not any(state in here.active for here in found)]
    if passed:
        yield f"left at once: {', '.join(passed)}"
    for number, here in enumerate(found):
        yield ""
        yield f"{number}  {', '.join(here.states)}{_memory(here)}"
        if here.finished:
            yield "   finished"
            continue
        yield f"   legal    {', '.join(legal[here]) or 'nothing: stuck'}"
        if illegal := [event for event in events if event not in legal[here]]:
            yield f"   illegal  {', '.join(illegal)}"
        for event in legal[here]:
            if refused := [known for known, outcome in outcomes(here, event) if outcome.then is None]:
                ways = " or ".join(answered(one) for one in refused)
                yield f"   illegal  {event} if {ways}"


def _answers(here: Configuration, event: str) -> bool:
    """Whether the event is legal for some answers of the guards."""
    return any(outcome.then is not None for _, outcome in outcomes(here, event))


def _memory(here: Configuration) -> str:
    """What the histories remember, which tells two configurations with the same states apart."""
    nodes = here.chart.nodes
    held = [
        f"{nodes[index].id}: {' '.join(nodes[one].id for one in states)}" for index, states in here.history
    ]
    return f"  ({'; '.join(held)})" if held else ""


def _size(chart: Chart) -> str:
    parts = ((chart.states, "state"), (chart.events, "event"), (chart.guards, "guard"))
    return ", ".join(_counted(len(what), word) for what, word in parts)


def _counted(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def _load(source: str) -> Chart:
    """A chart by name or path.

    Raises:
        ConfigError: it has the form of a name, and no chart of luce is called so.
        ChartError: as :func:`luce.charts.loader.load_chart`.
    """
    names = chart_names()
    if source.isidentifier() and source not in names:
        raise ConfigError(
            f"luce has no chart {quoted(source)}{hint(source, names)} There are {', '.join(names)}; "
            "a file is given by a path with a / or a . in it",
            flag="CHART",
        )
    return load_chart(source)


def hint(name: str, known: Sequence[str]) -> str:
    """The end of a sentence that says that there is no such name."""
    close = get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]}?" if close else "."
