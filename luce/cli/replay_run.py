"""``luce replay run``: the real actors once more, led along a trace."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from luce.cli.flags import ConfigFlags
from luce.cli.main import EXIT_FAILED
from luce.cli.replay_exact import OneTrace
from luce.errors import printable
from luce.replay.check import charts_of
from luce.trace.events import EventRecord
from luce.trace.reader import FileStart, read_header, read_trace, trace_paths

if TYPE_CHECKING:
    from luce.replay.redrive.outcome import Parted

__all__ = ["NO_END", "run"]

NO_END = "the trace does not reach the end of its server: that was killed, or still runs, or the last records are gone"


def run(
    trace: OneTrace,
    /,
    *,
    recorded_plans: Annotated[
        bool, Parameter(negative="", help="Let the trace decide, and compare what actors make of its plans.")
    ] = False,
    config: ConfigFlags = ConfigFlags(),  # noqa: B008 - frozen
) -> int:
    """Drive luce's actors along a trace, on a device that gives the recorded results, and compare all that they do.

    Ends with 1 where they part. Needs no model and no device.
    """
    from luce.replay.redrive.driver import drive
    from luce.replay.redrive.script import script_of

    paths, warnings = trace_paths([trace]), list[str]()
    first = read_header(paths[0])
    script = script_of(read_trace(paths, warnings))
    logging.disable(logging.CRITICAL)  # what failed then fails again, and was logged then
    try:
        found = drive(first.header, script, read_trace(paths), recorded_plans=recorded_plans)
    finally:
        logging.disable(logging.NOTSET)
    for line in warnings:
        print(f"luce: {printable(line)}", file=sys.stderr)
    if not (script.whole or script.failed) and found.parted is None:
        print(f"luce: {NO_END}", file=sys.stderr)
    if found.parted is not None:
        guards = {name: chart.guard_order for name, chart in charts_of(first.header, first.path).items()}
        for line in _told(found.parted, guards):
            print(line)
        return EXIT_FAILED
    print(
        f"{found.records:,} records, {found.plans:,} plans and {found.launches:,} launches: the actors do the same"
    )
    return 0


def _told(parted: Parted, guards: dict[str, tuple[str, ...]]) -> Iterator[str]:
    from luce.replay.show import record_line

    expected = parted.expected
    if expected is None or isinstance(expected, FileStart):
        yield f"at the end of the trace: {printable(parted.why)}"
    else:
        yield f"at record {expected[0]}: {printable(parted.why)}"
        if isinstance(expected, EventRecord):
            yield f"  in the trace  {record_line(expected, lambda name: guards.get(name, ()))}"
        else:
            yield f"  in the trace  {printable(str(expected[2]))}"
    if parted.found is not None:
        yield f"  now           {printable(parted.found)}"
