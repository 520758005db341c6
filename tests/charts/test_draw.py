"""The drawing shows every state and every transition, and follows the file."""

from __future__ import annotations

import re

import pytest

from luce.charts.draw import to_dot
from luce.charts.loader import chart_names, chart_path, load_chart, parse_chart

ARROW = re.compile(r'^  ("[^"]+") -> ("[^"]+") \[label="((?:[^"\\]|\\.)*)"')


@pytest.mark.parametrize("name", chart_names())
def test_everything_is_drawn(name: str) -> None:
    chart = load_chart(name)
    dot = to_dot(chart)
    assert dot.count("{") == dot.count("}")
    assert dot == to_dot(load_chart(name)), "the same text every time"
    for node in chart.nodes[1:]:
        assert f'"{node.id}"' in dot or f'"cluster_{node.id}"' in dot
    arrows = [match for line in dot.splitlines() if (match := ARROW.match(line))]
    assert len(arrows) == sum(len(t.targets) for node in chart.nodes for t in node.transitions)
    for event in chart.events:
        assert event in dot
    for guard in chart.guards:
        assert f"[{guard}]" in dot


def test_arrows_say_what_the_file_says() -> None:
    dot = to_dot(load_chart("request"))
    assert (
        '"arrival" -> "ending_failed" [label="queue.expired", ltail="cluster_waiting", '
        'tooltip="Waited too long, or the server drains' in dot
    )
    assert (
        '"decoding_enter" -> "ending_finished" [label="token [stop_reached]", ltail="cluster_decoding"];'
        in dot
    )
    assert "entry / queue.expired in 300 s\\lexit / stop queue.expired" in dot
    assert "entry / loop!admit" in dot
    assert '[label="cancel", ltail="cluster_live"];' in dot
    assert '"parked_saved" -> "decoding_enter" [label="resume / loop!rows.ready"' in dot


def test_a_change_of_the_file_changes_the_drawing() -> None:
    text = chart_path("encoder").read_text()
    changed = parse_chart(
        text.replace('event="stop" target="stopping"', 'event="stop" target="idle"')
        .replace('event="stop" target="stopped"', 'event="stop" target="stopping"')
        .encode(),
        "x",
    )
    assert '"idle" -> "stopping" [label="stop"]' in to_dot(changed)
    assert '"idle" -> "stopping"' not in to_dot(load_chart("encoder"))


def test_active_states_are_marked() -> None:
    chart = load_chart("loop")
    dot = to_dot(chart, active={"idle", "open"})
    assert dot.count("gold];") == 2
    assert "gold]" not in to_dot(chart)
