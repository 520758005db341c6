"""A report as one HTML file that needs nothing else: no script, no other address."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
from jinja2 import Environment, PackageLoader, StrictUndefined

from luce.replay.load.report import SAID, LoadReport
from luce.replay.load.tally import Tally

__all__ = ["html"]

WIDTH, HEIGHT = 720, 120


@attrs.frozen
class Curve:
    """One value over the run."""

    name: str
    unit: str
    most: float
    points: str
    """Of an SVG polyline in :data:`WIDTH` × :data:`HEIGHT`."""


def html(report: LoadReport) -> str:
    """The whole page. Everything in it that came from outside is escaped."""
    environment = Environment(
        loader=PackageLoader("luce.replay.load", "."), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters["ms"] = lambda value: "—" if value is None else f"{1000 * value:,.2f}"
    return environment.get_template("page.html").render(
        report=report,
        content=report.content(),
        said=SAID,
        curves=_curves(report.tally),
        width=WIDTH,
        height=HEIGHT,
    )


def _curves(tally: Tally) -> list[Curve]:
    ticks, seconds = tally.ticks, tally.tick_seconds
    return [
        _curve("arrivals", "a second", [one.arrivals / seconds for one in ticks]),
        _curve("pieces of answers", "a second", [one.pieces / seconds for one in ticks]),
        _curve(
            "time to first token, mean",
            "ms",
            [1000 * one.first_seconds / one.firsts if one.firsts else 0.0 for one in ticks],
        ),
        _curve("whole answers", "a second", [one.ended / seconds for one in ticks]),
        _curve("errors", "a second", [one.errors / seconds for one in ticks]),
    ]


def _curve(name: str, unit: str, values: Sequence[float]) -> Curve:
    most = max(values, default=0.0)
    step = WIDTH / max(len(values), 1)
    corners = []
    for index, value in enumerate(values):
        y = HEIGHT - (HEIGHT * value / most if most else 0.0)
        corners += [f"{index * step:.1f},{y:.1f}", f"{(index + 1) * step:.1f},{y:.1f}"]
    return Curve(name, unit, most, " ".join(corners))
