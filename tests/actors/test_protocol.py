from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from luce.actors.encoder import EncoderGuards
from luce.actors.protocol import FED, check_protocol
from luce.actors.request import RequestGuards
from luce.actors.service import ServerGuards
from luce.actors.step_loop import LoopGuards
from luce.charts.loader import load_chart
from luce.errors import ChartError

FOLDER = Path(__file__).parents[2] / "statecharts"
NOBODY: Any = None
GUARDS = {
    "request": RequestGuards(NOBODY),
    "loop": LoopGuards(NOBODY),
    "encoder": EncoderGuards(NOBODY),
    "server": ServerGuards(),
}


def test_the_charts_fit_their_actors_and_each_other() -> None:
    check_protocol({name: load_chart(name) for name in FED}, GUARDS)


@pytest.mark.parametrize(
    ("chart", "old", "new", "reason"),
    [
        ("request", 'cond="images_missing"', 'cond="images_mising"', "no @guard method images_mising"),
        (
            "request",
            'target="#_loop" event="admit"',
            'target="#_lop" event="admit"',
            "sends 'admit' to #_lop",
        ),
        (
            "request",
            'target="#_loop" event="admit"',
            'target="#_loop" event="admitt"',
            "loop.scxml knows no such",
        ),
        (
            "request",
            '"slot.granted"',
            '"slot.grantd"',
            "no transition for slot.granted, which its actor feeds",
        ),
        ("loop", 'event="queue.expired"', 'event="xqueue.expired"', "request.scxml knows no such"),
        ("encoder", 'event="image.ready"', 'event="image.redy"', "request.scxml knows no such"),
    ],
)
def test_a_misspelt_chart_is_refused_before_anything_is_served(
    chart: str, old: str, new: str, reason: str, tmp_path: Path
) -> None:
    text = (FOLDER / f"{chart}.scxml").read_text()
    assert old in text, "the trap"
    edited = tmp_path / f"{chart}.scxml"
    edited.write_text(text.replace(old, new))
    charts = {name: load_chart(name) for name in FED} | {chart: load_chart(edited)}
    with pytest.raises(ChartError, match=reason):
        check_protocol(charts, GUARDS)
