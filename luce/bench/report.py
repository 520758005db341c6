"""A run of `luce bench` as one value: JSON out and in, lines for people, and two of them side by side."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs

from luce.bench.limits import Speeds
from luce.bench.points import Point
from luce.errors import ConfigError, quoted, reason

__all__ = ["Comparison", "Report", "compare", "comparison_lines", "head_lines", "point_line", "read_report"]

VERSION = 1
"""Of the JSON; another one is refused."""


@attrs.define
class Report:
    """Everything that a later reader needs to know what was measured."""

    when: str
    """UTC, ISO 8601."""
    luce: str
    """Version."""
    machine: str
    device: str
    """What computed, with the libraries that its bits and its speed depend on."""
    model: str
    shape: str | None
    """Of synthetic weights."""
    weights: str
    """Their format in the engine's memory."""
    weight_bytes: float
    """Of the text model's matrices, all experts included."""
    speeds: Speeds
    options: dict[str, Any] = attrs.field(factory=dict)
    startup: dict[str, float] = attrs.field(factory=dict)
    """Seconds by what was done before the first point."""
    memory: dict[str, int] = attrs.field(factory=dict)
    """Bytes of the GPU: what arrays take by the memory plan, what is left to the driver and to compiled kernels beside
    them, and what is gone once the model is loaded."""
    points: list[Point] = attrs.field(factory=list)

    def json(self) -> str:
        content = {"luce_bench": VERSION} | attrs.asdict(self)
        for entry, point in zip(content["points"], self.points, strict=True):
            entry["share"] = point.share
        return json.dumps(content, indent=1) + "\n"


def read_report(path: Path) -> Report:
    """A report from its file.

    Raises:
        ConfigError: names the file and what is wrong with it.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: {reason(error)}") from None
    if not isinstance(content, dict) or "luce_bench" not in content:
        raise ConfigError(f"{path}: is no report of luce bench --json")
    if (version := content.pop("luce_bench")) != VERSION:
        raise ConfigError(
            f"{path}: luce_bench is {quoted(version)}; this luce reads {VERSION}, run luce bench again"
        )
    try:
        points = [
            Point(
                **{name: value for name, value in entry.items() if name != "share"}
                | {"runs": tuple(entry["runs"])}
            )
            for entry in content.pop("points")
        ]
        report = Report(**content | {"points": points, "speeds": Speeds(**content["speeds"])})
    except (TypeError, KeyError, AttributeError) as error:
        raise ConfigError(f"{path}: is no whole report of luce bench --json ({reason(error)})") from None
    return report


NAME_WIDTH = 66


def head_lines(report: Report) -> list[str]:
    """What all points are held against."""
    speeds, memory = report.speeds, report.memory
    taken = []
    if memory:
        planned, gone = memory["planned"], memory["taken"]
        taken = [
            f"takes {gone / 1e9:,.4g} GB of the GPU's memory, {100 * (gone / planned - 1):+.2f} % beside the "
            f"{planned / 1e9:,.4g} planned"
        ]
    return [
        f"{report.model}, weights in {report.weights}: {report.weight_bytes / 1e9:,.3g} GB",
        f"{report.device or report.machine}: copies {speeds.bytes_per_second / 1e9:,.1f} GB/s, multiplies "
        f"{speeds.flops_per_second / 1e12:,.3g} TFLOP/s, both measured now",
        *taken,
    ]


def point_line(point: Point) -> str:
    """A point beside its limit."""
    line = f"{point.name:<{NAME_WIDTH}} {_number(point.value):>9} {point.unit:<5}"
    if point.limit is not None and point.share is not None:
        by = f" by {point.bound}" if point.bound else ""
        line += f"  {100 * point.share:5.1f} % of the limit, {_number(point.limit)}{by}"
    if point.spread > NOISY:
        line += f"  (runs differ by {100 * point.spread:.0f} %)"
    return line.rstrip()


NOISY = 0.05
"""Of the median: runs that differ by more are told."""


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}" if value >= 10 else f"{value:.3g}"


@attrs.frozen
class Comparison:
    """One point in two reports."""

    name: str
    unit: str
    one: float
    other: float
    gain: float
    """How much faster the other one is: 1.1 is a tenth, whatever the unit."""


def compare(one: Report, other: Report) -> list[Comparison]:
    """The points that both have."""
    mine = {point.name: point for point in one.points}
    found = []
    for point in other.points:
        if (before := mine.get(point.name)) is not None and before.unit == point.unit:
            ratio = point.value / before.value
            gain = ratio if point.unit == "tok/s" else 1 / ratio
            found.append(Comparison(point.name, point.unit, before.value, point.value, gain))
    return found


def comparison_lines(one: Report, other: Report) -> Iterator[str]:
    """Both reports' points in a table, and before it in what they are not alike."""
    for name in ("luce", "machine", "device", "model", "weights", "options"):
        a, b = getattr(one, name), getattr(other, name)
        if a != b:
            yield f"{name} differs: {_shown(a)} | {_shown(b)}"
    a, b = one.speeds, other.speeds
    yield f"copying {a.bytes_per_second / 1e9:,.1f} | {b.bytes_per_second / 1e9:,.1f} GB/s"
    yield f"products {a.flops_per_second / 1e12:,.3g} | {b.flops_per_second / 1e12:,.3g} TFLOP/s"
    for line in compare(one, other):
        yield (
            f"{line.name:<{NAME_WIDTH}} {_number(line.one):>9} {_number(line.other):>9} {line.unit:<5} "
            f"{100 * (line.gain - 1):+6.1f} %"
        )
    names = [{point.name for point in report.points} for report in (one, other)]
    for which, report, others in (("first", one, names[1]), ("second", other, names[0])):
        for point in report.points:
            if point.name not in others:
                yield f"{point.name:<{NAME_WIDTH}} only in the {which}"


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}={item}" for key, item in value.items())
    return str(value)
