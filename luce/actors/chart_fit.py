"""Does what runs a chart fit it? One chart at a time; :mod:`luce.actors.protocol` has the rules for the actors."""

from __future__ import annotations

from collections.abc import Mapping

from luce.actors.protocol import FED, check_fit
from luce.actors.service import actor_guards
from luce.charts.model import Chart
from luce.charts.table import compile_table
from luce.errors import ChartError
from luce.scheduling import block_states, prefix_entry

__all__ = ["fits"]

TABLES = {"block": block_states.GUARDS, "prefix_entry": prefix_entry.GUARDS}
"""Charts that are stepped by their compiled table, and the guards that their owner answers, by bit."""


def fits(chart: Chart, actors: Mapping[str, Chart]) -> str:
    """Compare a chart with what runs it, which its name says.

    Args:
        actors: the charts named in :data:`luce.actors.protocol.FED`; ``chart`` among them if it has such a name.

    Returns:
        what was compared and fits, for people.

    Raises:
        ChartError: names the chart and what does not fit.
    """
    if chart.name in FED:
        guards = actor_guards()[chart.name]
        check_fit(chart.name, actors, guards)
        return f"fits {type(guards).__name__} and the charts that it sends to"
    if chart.name in TABLES:
        table = compile_table(chart)
        if chart.guard_order != TABLES[chart.name]:
            raise ChartError(
                f"{chart.name}: the guards are {', '.join(chart.guard_order) or 'none'}; "
                f"its owner answers {', '.join(TABLES[chart.name])}, in this order"
            )
        return (
            f"makes a table of {len(table.configurations)} configurations for its owner, who has the guards"
        )
    return "no actor of luce runs it"
