"""``python -m benchmarks.load``: 200 clients that stream from 8 slots, and 10,000 that leave, against `luce serve`.

Every answer is compared with what the same request gets alone. Ends with status 1 if one is lost or differs, if memory
grows from the second wave to the last, or if anything is left behind by those that left: requests, slots, blocks,
tasks, sockets.
"""

from __future__ import annotations

import argparse
import math
import sys

import trio

from benchmarks.client import Child, serving
from benchmarks.crowds import POINTS, Served, Standing, ask_all, at_rest, come_and_go, question

SPARE = 4
"""Descriptors and tasks beyond those before: what is opened on first use and stays."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.load", description=__doc__)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--queue", type=int, default=64, help="requests that may wait; more are refused")
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--waves", type=int, default=4)
    parser.add_argument("--leavers", type=int, default=10_000)
    parser.add_argument("--at-once", type=int, default=100, help="of those that leave")
    parser.add_argument("--bound", type=float, default=16.0, help="MB that memory may grow by")
    given = parser.parse_args()
    flags = ("--slots", str(given.slots), "--queue", str(given.queue), "--log-level", "warning")
    with serving(*flags) as child:
        return trio.run(_run, given, child)


async def _run(given: argparse.Namespace, child: Child) -> int:
    faults: list[str] = []
    questions = {number: question(number, given.tokens) for number in range(given.clients)}
    alone = await ask_all(child.url, questions, at_once=1)
    resident = []
    for wave in range(given.waves):
        served = await ask_all(child.url, questions)
        resident.append(child.resident)
        wrong = [number for number in questions if served.answers.get(number) != alone.answers[number]]
        _tell(f"wave {wave + 1}", served, child.resident)
        if wrong:
            faults.append(f"wave {wave + 1}: {len(wrong)} answers are lost or not those of the request alone")
    if len(resident) > 2 and resident[-1] - resident[1] > given.bound:
        faults.append(f"memory grew from {resident[1]:.0f} to {resident[-1]:.0f} MB")
    before = await at_rest(child.url, child.process.pid, lambda now: not now.requests)
    left = await come_and_go(child.url, given.leavers, given.at_once)
    print(f"left: {', '.join(f'{left[point]:,} {point}' for point in POINTS)}", flush=True)
    after = await at_rest(child.url, child.process.pid, lambda now: not _behind(before, now))
    print(f"before {before}\nafter  {after}\nresident {child.resident:.0f} MB")
    faults += _behind(before, after)
    if child.resident - resident[-1] > given.bound:
        faults.append(f"memory grew from {resident[-1]:.0f} to {child.resident:.0f} MB")
    for fault in faults:
        print(f"FAULT: {fault}")
    return 1 if faults else 0


def _tell(what: str, served: Served, resident: float) -> None:
    gaps = sorted(served.gaps)
    p50, p99 = (1000 * gaps[math.ceil(share * len(gaps)) - 1] for share in (0.5, 0.99))
    print(
        f"{what}: {len(served.answers)} answers, {served.refusals} refusals, gap between tokens: median {p50:.1f} ms, "
        f"p99 {p99:.1f} ms, longest {1000 * gaps[-1]:.0f} ms; resident {resident:.0f} MB",
        flush=True,
    )


def _behind(before: Standing, after: Standing) -> list[str]:
    """What those that left have left behind."""
    found = [
        f"{getattr(after, name)} {name} are held"
        for name in ("requests", "slots", "blocks")
        if getattr(after, name)
    ]
    return found + [
        f"{getattr(after, name)} {name}, {getattr(before, name)} before"
        for name in ("tasks", "files")
        if getattr(after, name) > getattr(before, name) + SPARE
    ]


if __name__ == "__main__":
    sys.exit(main())
