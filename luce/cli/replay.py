"""``luce replay check | run | exact | load | show | diff | export``: what `luce serve --trace` has recorded."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Group, Parameter
from rich.console import Console

from luce.charts.loader import chart_names, load_chart
from luce.cli.flags import COUNT, FILE, FILES, NAME, ConfigFlags
from luce.cli.main import EXIT_FAILED
from luce.cli.outputs import same_file, writing
from luce.cli.replay_exact import OneTrace, exact
from luce.cli.replay_load import load
from luce.cli.replay_run import NO_END, run
from luce.errors import ConfigError, printable
from luce.replay.check import Checker, Divergence, charts_of, first_divergence
from luce.trace.events import EventRecord
from luce.trace.reader import FileStart, read_header, read_trace, trace_paths

if TYPE_CHECKING:
    from luce.replay.independent import Voice
    from luce.trace.schema import Header

__all__ = ["check", "diff", "exact", "export", "load", "run", "show"]

WINDOW = Group("Window", sort_key=1)


Traces = Annotated[
    tuple[Path, ...],
    FILES,
    Parameter(help="Trace files, or directories of them; those of one run in their order."),
]


def check(
    traces: Traces,
    /,
    *,
    independent: Annotated[
        bool,
        Parameter(
            negative="", help="Ask python-statemachine, too, which knows nothing of luce's interpreter. Slow."
        ),
    ] = False,
    sample: Annotated[
        int, COUNT, Parameter(help="Steps at which --independent takes on no more machines.")
    ] = 50_000,
    config: ConfigFlags = ConfigFlags(),  # noqa: B008 - frozen
) -> int:
    """Step every machine of a trace again by the charts in it. Shows the first record that does not follow."""
    paths = trace_paths(traces)
    header = read_header(paths[0]).header
    voice = _voice(header, sample) if independent else None
    checker, warnings = Checker(voice), list[str]()
    found = first_divergence(read_trace(paths, warnings, unbroken=True), checker)
    for line in warnings:
        print(f"luce: {printable(line)}", file=sys.stderr)
    _note_other_charts(header)
    for name in checker.unended if found is None else ():
        print(printable(f"luce: run {name}: {NO_END}"), file=sys.stderr)
    if found is not None:
        for line in _told(found, checker):
            print(line)
        return EXIT_FAILED
    counts = ", ".join(f"{count:,} {name}" for name, count in sorted(checker.by_machine.items()))
    print(f"{checker.checked:,} records follow from their charts: {counts or 'none'}")
    if checker.lost:
        print(f"{checker.lost:,} records are missing, since more came at once than the recorder could take")
    if voice is not None:
        print(f"python-statemachine agrees on {voice.checked:,} steps")
    return 0


def _voice(header: Header, sample: int) -> Voice:
    try:
        from luce.replay.independent import Voice
    except ImportError:
        raise ConfigError(
            "the package for it is not installed; pip install python-statemachine", flag="--independent"
        ) from None
    return Voice(header.charts, sample)


def _note_other_charts(header: Header) -> None:
    """The trace is judged by its own charts; whoever debugs wants to know that there are others by now."""
    mine = {name: load_chart(name).sha256 for name in chart_names()}
    other = sorted(
        name for name in mine.keys() | header.hashes.keys() if mine.get(name) != header.hashes.get(name)
    )
    if other:
        print(
            f"luce: charts of the trace that are others than this luce's: {', '.join(other)}", file=sys.stderr
        )


def _told(found: Divergence, checker: Checker) -> Iterator[str]:
    from luce.replay.show import record_line

    guards = _guards(checker)
    yield f"record {found.record.seq} does not follow: {printable(found.why)}"
    for mark, records in ((" ", found.before), (">", (found.record,)), (" ", found.after)):
        for record in records:
            yield f"{mark} {record_line(record, guards)}"


def _guards(checker: Checker) -> Callable[[str], tuple[str, ...]]:
    return lambda name: checker.charts[name].guard_order if name in checker.charts else ()


def show(
    trace: OneTrace,
    /,
    *,
    start: Annotated[float, Parameter(group=WINDOW, help="Seconds from the first record.")] = 0.0,
    end: Annotated[float | None, Parameter(group=WINDOW, help="Seconds from the first record.")] = None,
    lanes: Annotated[int, COUNT, Parameter(group=WINDOW, help="Requests that are drawn.")] = 40,
    width: Annotated[
        int | None, COUNT, Parameter(group=WINDOW, help="Columns; by default those of the terminal.")
    ] = None,
    request: Annotated[
        str | None,
        NAME,
        Parameter(help="List the records of this request instead, by its id or the end of it."),
    ] = None,
    config: ConfigFlags = ConfigFlags(),  # noqa: B008
) -> int:
    """Draw a trace in the terminal: requests as lanes, steps, encodes, queue and blocks left above them."""
    paths, warnings = trace_paths([trace]), list[str]()
    if request is not None:
        _list_request(paths, request, warnings)
    else:
        _draw(paths, warnings, start, end, lanes, width)
    for warning in warnings:
        print(f"luce: {printable(warning)}", file=sys.stderr)
    return 0


def _draw(
    paths: list[Path], warnings: list[str], start: float, end: float | None, lanes: int, width: int | None
) -> None:
    from luce.replay.show import Window, span_of, timeline

    span = span_of(read_trace(paths))
    if span is None:
        raise ConfigError("no record is in it", flag="TRACE")
    zero = span[0]
    last = span[1] if end is None else zero + end
    if not zero + start < max(last, zero + start + 1e-9) or (end is not None and end <= start):
        raise ConfigError(f"the window ends at {end} s and begins at {start} s", flag="--end")
    console = Console(highlight=False, soft_wrap=True, width=width)
    columns = max((width or console.width) - 26, 10)
    window = Window(zero + start, max(last, zero + start + 1e-6), columns)
    for line in timeline(read_trace(paths, warnings), window, lanes):
        console.print(line)


def _list_request(paths: list[Path], given: str, warnings: list[str]) -> None:
    """The records of the request that is meant: by its id, or by the end of it that a timeline shows."""
    from luce.replay.show import record_line

    guards: dict[str, tuple[str, ...]] = {}

    def guards_of(name: str) -> tuple[str, ...]:
        return guards.get(name, ())

    ids: set[str] = set()
    lines: dict[str, list[str]] = {given: []}
    """Of the id itself, and of the first other one that ends so while it is the only one."""
    for item in read_trace(paths, warnings):
        if isinstance(item, FileStart):
            guards = {name: chart.guard_order for name, chart in charts_of(item.header, item.path).items()}
        elif isinstance(item, EventRecord) and item.machine == "request" and str(item.id).endswith(given):
            name = str(item.id)
            if name not in ids:
                ids.add(name)
                lines = {given: lines[given]} | ({name: []} if ids == {name} and name != given else {})
            if name in lines:
                lines[name].append(record_line(item, guards_of))
    if given not in ids and len(ids) > 1:
        raise ConfigError(f"{len(ids)} requests end in {given!r}; give more of the id", flag="--request")
    if not ids:
        raise ConfigError(f"the trace has no request {given!r}", flag="--request")
    for line in lines[given if given in ids else ids.pop()]:
        print(line)


def diff(
    one: OneTrace,
    other: OneTrace,
    /,
    *,
    most: Annotated[int, COUNT, Parameter(help="Differences that are shown.")] = 20,
    config: ConfigFlags = ConfigFlags(),  # noqa: B008
) -> int:
    """Compare two traces: the first difference of every machine and of the plans, clock times aside.

    Ends with 1 if there is one.
    """
    from luce.replay.diff import differences, header_differences

    mine, theirs, warnings = trace_paths([one]), trace_paths([other]), list[str]()
    headers = read_header(mine[0]).header, read_header(theirs[0]).header
    if changed := header_differences(*headers):
        print(f"recorded otherwise: {', '.join(changed)}")
    found = differences(read_trace(mine, warnings), read_trace(theirs, warnings))
    shown = list(islice(found, most))
    for difference in shown:
        name = f"{difference.machine} {difference.id}".strip()
        print(f"{printable(name)}: alike for {difference.place}, then")
        for path, did in ((one, difference.one), (other, difference.other)):
            said = "nothing more" if did is None else f"record {did.seq}: {did.what}"
            print(f"  {printable(str(path))}: {printable(said)}")
    if next(found, None) is not None:
        print("and more; --most shows them")
    for warning in warnings:
        print(f"luce: {printable(warning)}", file=sys.stderr)
    if not shown:
        print("every machine does the same, and so do the plans")
    return EXIT_FAILED if shown else 0


def export(
    trace: OneTrace,
    /,
    *,
    chrome: Annotated[
        Path | None, FILE, Parameter(help="File in Chrome's trace format, for https://ui.perfetto.dev.")
    ] = None,
    csv: Annotated[Path | None, FILE, Parameter(help="File with a row for every record.")] = None,
    config: ConfigFlags = ConfigFlags(),  # noqa: B008
) -> int:
    """Write a trace in formats of other tools."""
    from luce.replay.export import write_chrome, write_csv

    if chrome is None and csv is None:
        raise ConfigError("nothing is to be written; give --chrome FILE or --csv FILE", flag="--chrome")
    paths, warnings = trace_paths([trace]), list[str]()
    for flag, path, write in (("--chrome", chrome, write_chrome), ("--csv", csv, write_csv)):
        if path is None:
            continue
        if any(same_file(path, source) for source in paths):
            raise ConfigError(f"{path} is the trace itself", flag=flag)
        warnings.clear()
        with writing(path, flag), path.open("w", encoding="utf-8", newline="") as file:
            count = write(read_trace(paths, warnings), file)
        print(f"{printable(str(path))}: {count:,} {'events' if flag == '--chrome' else 'rows'}")
    for warning in warnings:
        print(f"luce: {printable(warning)}", file=sys.stderr)
    return 0
