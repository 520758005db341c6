"""``python -m benchmarks [NAME ...] [--json FILE]``: run the benchmarks, all of them by default.

Each is a module here with ``main() -> list[Result]``; what it prints itself is its own business. Run on an idle
machine.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import platform
import sys
from pathlib import Path

import attrs
import numpy as np

from benchmarks.measure import Result

BENCHMARKS = {
    "charts": "events a second through the statechart interpreter",
    "blocks": "the block pool, small and large",
    "sampling": "one token from a row of logits",
    "engine": "the demo model on this machine",
    "prefix_cache": "keys, look-ups and evictions of the prefix cache, by the number of entries",
    "scheduler": "plans and whole steps in Python, and what they do not grow with",
    "recording": "what `luce serve --trace` costs",
    "page": "what a page at /ui costs the step loop (needs playwright and a Chromium)",
    "turns": "whole turns a second of real actors on an engine that costs nothing",
    "overhead": "what the HTTP side costs, beside bare Quart",
    "server": "a whole server over loopback",
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(BENCHMARKS)}")
    parser.add_argument("--list", action="store_true", help="list them and stop")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.names if name not in BENCHMARKS]
    if unknown:
        parser.error(f"no benchmark {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}")
    if arguments.list:
        for name, what in BENCHMARKS.items():
            print(f"{name:12} {what}{'' if present(name) else ' (not written yet)'}")
        return 0
    figures: dict[str, list[Result]] = {}
    for name in arguments.names or [name for name in BENCHMARKS if present(name)]:
        if not present(name):
            parser.error(f"benchmark {name} is not written yet")
        figures[name] = run(name)
    if arguments.json:
        arguments.json.write_text(json.dumps(document(figures), indent=2) + "\n")
    return 0


def present(name: str) -> bool:
    return importlib.util.find_spec(f"benchmarks.{name}") is not None


def run(name: str) -> list[Result]:
    """Run one and print its table."""
    print(f"{name}: {BENCHMARKS[name]}", flush=True)
    results: list[Result] = list(importlib.import_module(f"benchmarks.{name}").main())
    for result in results:
        goal = f"  goal {result.goal:g}" if result.goal is not None else ""
        quiet = result.quiet_runs >= result.runs
        noise = "" if quiet else f"  (only {result.quiet_runs} of {result.runs} runs were quiet)"
        if result.others is not None and not quiet:
            noise += f", others took {result.others:.1f} cores"
        print(
            f"  {result.name:50} {result.value:10,.1f} {result.unit:12}"
            f" python loop {result.loop_ms:5.1f} ms{goal}{noise}"
        )
    return results


def document(figures: dict[str, list[Result]]) -> dict[str, object]:
    return {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "machine": platform.machine(),
        "system": platform.system(),
        "figures": {name: [attrs.asdict(result) for result in results] for name, results in figures.items()},
    }


if __name__ == "__main__":
    sys.exit(main())
