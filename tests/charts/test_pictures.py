"""Pictures of charts: those in the documents show what the charts hold, and Graphviz makes new ones."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from PIL import Image

from luce.charts import draw
from luce.charts.draw import picture, to_dot
from luce.charts.loader import chart_names, load_chart
from luce.errors import ChartError
from tools.chart_pictures import FOLDER

SVG = "{http://www.w3.org/2000/svg}"


def graphviz() -> None:
    if shutil.which("dot") is None:
        pytest.skip("no Graphviz: install it (apt-get install graphviz)")


def shown(svg: bytes) -> Counter[str]:
    """Every line of text."""
    return Counter(text.text or "" for text in ElementTree.fromstring(svg).iter(f"{SVG}text"))


def written(dot: str) -> Counter[str]:
    """Every line of a label that is not empty."""
    labels = [label for label in re.findall(r'label="((?:[^"\\]|\\.)*)"', dot) if label]
    lines = [line for label in labels for line in re.split(r"\\[nl]", label) if line]
    return Counter(line.replace('\\"', '"').replace("\\\\", "\\") for line in lines)


def arrows(svg: bytes) -> int:
    groups = ElementTree.fromstring(svg).iter(f"{SVG}g")
    return sum(group.get("class") == "edge" for group in groups)


@pytest.mark.parametrize("name", chart_names())
def test_the_pictures_of_the_documents_show_the_charts(name: str) -> None:
    dot = to_dot(load_chart(name))
    svg = (FOLDER / f"{name}.svg").read_bytes()
    assert shown(svg) == written(dot), "python -m tools.chart_pictures draws it again"
    assert arrows(svg) == dot.count(" -> ")


def test_the_documents_show_all_pictures() -> None:
    text = (FOLDER.parents[1] / "reference" / "statecharts.md").read_text()
    for name in chart_names():
        assert f"](../images/statecharts/{name}.svg)" in text
    assert {path.stem for path in FOLDER.iterdir()} == set(chart_names())


def test_graphviz_draws_both_kinds() -> None:
    graphviz()
    dot = to_dot(load_chart("encoder"), ("idle",))
    svg = picture(dot, "svg")
    assert shown(svg) == written(dot) and b'fill="gold"' in svg
    image = Image.open(io.BytesIO(picture(dot, "png"))).convert("RGB")
    colours = image.getcolors(1 << 20)
    assert colours is not None and (255, 215, 0) in {colour for _, colour in colours}, "gold"
    assert image.width > 300


def test_what_graphviz_says_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    graphviz()
    with pytest.raises(ChartError, match="dot: Error: <stdin>: syntax error in line 1"):
        picture("digraph {{", "svg")

    def late(*_: Any, **more: Any) -> None:
        raise subprocess.TimeoutExpired("dot", more["timeout"])

    monkeypatch.setattr(draw.subprocess, "run", late)
    with pytest.raises(ChartError, match=r"dot: .*timed out after 60"):
        picture("digraph {}", "svg")


def test_without_graphviz_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ChartError, match=r"install it .apt-get install graphviz., or write a .dot file"):
        picture("digraph {}", "png")
