"""Binds the guard names of a chart to the methods of an actor's guard class.

A guard is a method without arguments that reads the actor's data and returns a bool. It must not change
anything: the interpreter calls it at most once an event, and only when the answer can matter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from luce.charts.model import Chart
from luce.errors import ChartError

__all__ = ["bind_guards", "guard", "guard_names"]

_MARK = "__luce_guard__"
_Method = TypeVar("_Method", bound=Callable[[Any], bool])


def guard(method: _Method) -> _Method:
    """Marks a method as a guard that a chart names."""
    setattr(method, _MARK, True)
    return method


def guard_names(guards: type) -> frozenset[str]:
    """Names of all methods of the class, inherited ones included, that are marked with `guard`."""
    return frozenset(name for name in dir(guards) if getattr(getattr(guards, name, None), _MARK, False))


def bind_guards(chart: Chart, guards: object) -> tuple[Callable[[], bool], ...]:
    """The bound guard methods in the order of the chart's guard bits.

    Raises ChartError when the chart names a guard that the class does not have, or the reverse: a misspelt
    guard must not read as false. Checked once for each chart and class.
    """
    owner = type(guards)
    if owner not in chart.guard_classes:
        offered = guard_names(owner)
        if missing := sorted(chart.guards - offered):
            raise ChartError(f"{chart.name}: {owner.__qualname__} has no @guard method {', '.join(missing)}")
        if unused := sorted(offered - chart.guards):
            raise ChartError(
                f"{chart.name}: the chart names no guard {', '.join(unused)} of {owner.__qualname__}"
            )
        chart.guard_classes.add(owner)
    return tuple(getattr(guards, name) for name in chart.guard_order)
