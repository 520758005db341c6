"""The exactness matrix on a terminal: progress, what is wrong as it is found, and counts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import trio
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from luce.demo.matrix.cells import Cell
from luce.demo.matrix.running import Bench, Report, run_cell
from luce.demo.matrix.summary import Summary
from luce.errors import printable

__all__ = ["run_matrix"]


def run_matrix(cells: Sequence[Cell], console: Console, make: Callable[[], Bench] = Bench) -> bool:
    """Run the cells one after the other on what ``make`` opens. True when every promise was kept and every cell was
    what its name says."""
    summary, started = Summary(), time.monotonic()
    for report in _reports(cells, console, make):
        summary.add(report)
        for text in report.wrong + report.missing:
            console.print("[red]FAIL[/] ", end="")
            console.print(f"{report.cell.name}: {printable(text)}", markup=False)
    for name, text in summary.lines():
        console.print(f"       {name:<12} {text}", markup=False)
    console.print(f"       {'time':<12} {time.monotonic() - started:.0f} s", markup=False)
    return summary.good


def _reports(cells: Sequence[Cell], console: Console, make: Callable[[], Bench]) -> Iterator[Report]:
    """A bar on a terminal; elsewhere a line at every twentieth part."""
    bench = make()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=len(cells))
        for done, cell in enumerate(cells, 1):
            bar.update(task, description=cell.name)
            try:
                report = trio.run(run_cell, bench, cell)
            except BaseException:
                console.print(f"in cell {cell.name}:", markup=False)
                raise
            yield report
            bar.advance(task)
            if not console.is_terminal and done * 20 // len(cells) > (done - 1) * 20 // len(cells):
                console.print(f"       {done} of {len(cells)} cells", markup=False)
    bench.close()
