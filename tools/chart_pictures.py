"""Draws the statecharts in the documents, as `luce charts draw` does. Needs Graphviz.

From the repository root::

    python -m tools.chart_pictures

`tests/charts/test_pictures.py` fails when a picture does not show what its chart holds.
"""

from __future__ import annotations

import sys
from pathlib import Path

from luce.charts.draw import picture, to_dot
from luce.charts.loader import chart_names, load_chart

__all__ = ["FOLDER", "main"]

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "images" / "statecharts"


def main() -> int:
    FOLDER.mkdir(exist_ok=True)
    for name in chart_names():
        (FOLDER / f"{name}.svg").write_bytes(picture(to_dot(load_chart(name)), "svg"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
