from __future__ import annotations

from luce.actors.options import ServiceOptions
from luce.charts.loader import load_chart
from luce.charts.model import Send


def test_every_timer_of_the_charts_is_an_option_and_the_defaults_agree() -> None:
    written: dict[str, float] = {}
    for name in ("request", "loop", "encoder", "server"):
        for node in load_chart(name).nodes:
            for action in node.onentry:
                if isinstance(action, Send) and action.delay is not None:
                    written[action.event] = action.delay
    assert written.pop("deadline.expired")  # each request's own
    assert dict(ServiceOptions().delays) == written
