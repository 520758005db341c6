"""What the scripts have in common. It runs beside the client, where there is nothing of luce."""

from __future__ import annotations

import inspect
import json
import sys
import time
import traceback
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

FACTS: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())
CHECKS: list[Callable[[], Any]] = []

BASE = f"{FACTS['base']}/v1"
TIGHT = f"{FACTS['tight']}/v1"
KEY: str = FACTS["key"]
MODEL: str = FACTS["model"]


def check(function: Callable[[], Any]) -> Callable[[], Any]:
    CHECKS.append(function)
    return function


def equal(found: Any, expected: Any) -> None:
    assert found == expected, f"{found!r} is not {expected!r}"


def user(text: str, *urls: str) -> list[dict[str, Any]]:
    """A conversation of one turn."""
    if not urls:
        return [{"role": "user", "content": text}]
    pictures = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return [{"role": "user", "content": [*pictures, {"type": "text", "text": text}]}]


def slots(server: str = "base") -> dict[str, Any]:
    request = urllib.request.Request(f"{FACTS[server]}/slots", headers={"authorization": f"Bearer {KEY}"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def wait_for(condition: Callable[[], bool], what: str, seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{what}: not within {seconds:g} s"
        time.sleep(0.02)


def requests_are(count: int, server: str = "base") -> None:
    wait_for(lambda: len(slots(server)["requests"]) == count, f"{count} requests")


def nothing_runs(server: str = "base") -> None:
    """What was left is gone: no request, every slot free."""

    def free() -> bool:
        state = slots(server)
        return not state["requests"] and state["free"] == state["slots"]

    wait_for(free, "every slot free again")


def main(runner: Callable[..., Any] | None = None) -> None:
    """Runs every check, async ones by `runner`, and writes a line for each into the file of results."""
    with Path(sys.argv[2]).open("w") as results:
        for function in CHECKS:
            error = None
            try:
                if inspect.iscoroutinefunction(function):
                    assert runner is not None
                    runner(function)
                else:
                    function()
            except BaseException:
                error = traceback.format_exc()
            results.write(json.dumps({"check": function.__name__, "error": error}) + "\n")
            results.flush()
