"""The example of docs/how-to/find-a-stall.md: a stall is seen on the page, found in the trace, replayed, explained.

The stall is planted: a server of the bundled model that may compute 2,048 prompt rows in one step, three answers that
stream, and then somebody with a long prompt.
"""

from __future__ import annotations

import re
import statistics
import subprocess
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from luce.replay.tracks import Step, seen
from luce.trace.reader import read_trace, trace_paths
from tests.browser.driving import ARTIFACTS, chromium, watched_page
from tests.e2e.server import LUCE, ServerProcess, serving, until

LONG = "word and another " * 600
FLAGS = ("--slots", "8", "--context", "4096", "--trace-content")


def ask(server: ServerProcess, question: str, tokens: int, said: list[str]) -> None:
    request = {
        "messages": [{"role": "user", "content": question}],
        "max_tokens": tokens,
        "stream": True,
        "ignore_eos": True,
        "temperature": 0,
    }
    with server.http() as client, client.stream("POST", "/v1/chat/completions", json=request) as answer:
        assert answer.status_code == 200
        said.extend(line for line in answer.iter_lines() if line.startswith("data: {"))


def traffic(server: ServerProcess, ended: Callable[[], None] = lambda: None) -> None:
    """Three answers, and a long prompt once they stream; ``ended`` is called when it is answered."""
    said: list[list[str]] = [[], [], []]
    threads = [
        threading.Thread(target=ask, args=(server, f"Count from {k} to {k + 7}.", 500, said[k]))
        for k in range(3)
    ]
    with ExitStack() as ends:
        for thread in threads:
            thread.start()
            ends.callback(thread.join)
        until(lambda: all(len(one) > 40 for one in said), 30)
        ask(server, LONG, 8, [])
        ended()


def replay(*arguments: str) -> str:
    done = subprocess.run([*LUCE, "replay", *arguments], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done
    return done.stdout


def steps_with_answers(directory: Path) -> list[Step]:
    """Steps in which several requests had rows."""
    found = seen(read_trace(trace_paths([directory]), []))
    return [one for one in found if isinstance(one, Step) and one.lanes >= 2]


@pytest.mark.timeout(300)
def test_a_planted_stall_is_found_replayed_and_explained(tmp_path: Path) -> None:
    chromium()
    ARTIFACTS.mkdir(parents=True, exist_ok=True)
    stalled, mended = tmp_path / "stalled", tmp_path / "mended"
    with serving(None, *FLAGS, "--prefill", "2048", "--trace", str(stalled)) as server:
        with watched_page(server.url) as page:
            page.locator(".state, #status").first.wait_for()
            traffic(server, lambda: look_at_the_stall(page))
        server.signal()
        assert server.wait(60) == 0
    # The trace holds it: one step with the long prompt's rows, during which three answers got nothing.
    steps = steps_with_answers(stalled)
    worst = max(steps, key=lambda step: step.landed - step.launched)
    assert worst.rows > 1000 and worst.lanes == 4, worst
    assert worst.landed - worst.launched > 10 * statistics.median(one.landed - one.launched for one in steps)
    assert re.search(r"rows, max 1[\d,]{3,}", replay("show", str(stalled), "--width", "100"))
    # It was no accident: the same plans follow from the same events, and say so.
    assert replay("run", str(stalled)).endswith("the actors do the same\n")
    # With fewer prompt rows in a step every token is the same.
    assert replay("exact", str(stalled), "--prefill", "64").endswith("every one is equal\n")
    with serving(None, *FLAGS, "--prefill", "64", "--trace", str(mended)) as server:
        traffic(server)
        server.signal()
        assert server.wait(60) == 0
    assert max(step.rows for step in steps_with_answers(mended)) <= 64 + 3


def look_at_the_stall(page: Any) -> None:
    """What the guide shows: the gap in the steps, held and zoomed in, and the request that filled it."""
    page.evaluate("luce.timeline.pause()")
    found = page.evaluate(
        """() => {
             const long = (step) => step.to - step.from;
             const worst = luce.store.steps.reduce((most, step) => long(step) > long(most) ? step : most);
             luce.timeline.seconds = 5 * long(worst);
             luce.timeline.right = luce.store.now;
             return worst;
           }"""
    )
    assert found["rows"] > 1000 and found["lanes"] == 4, found
    page.wait_for_timeout(300)
    box = page.evaluate(
        """(rows) => {
             const box = luce.timeline.boxes.find((one) => one.text().includes(`${rows} rows`));
             return [box.x + 0.3 * box.w, box.y + 4];
           }""",
        found["rows"],
    )
    page.locator("#lanes").hover(position={"x": box[0], "y": box[1]})
    page.get_by_text(f"{found['rows']} rows").wait_for()
    page.screenshot(path=str(ARTIFACTS / "stall.png"))
