"""Statecharts: a strict W3C SCXML subset, run by a memoising interpreter, explored and drawn from the same
file.
"""

from luce.charts.guards import guard
from luce.charts.interpreter import Machine, Step
from luce.charts.loader import chart_names, load_chart
from luce.charts.model import Chart, Send

__all__ = ["Chart", "Machine", "Send", "Step", "chart_names", "guard", "load_chart"]
