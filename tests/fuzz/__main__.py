"""`python -m tests.fuzz --seconds 600` sends nearly right requests to a whole server for so long.

Every case follows from the seed and its number; one that found something is run again by ``--seed S --case N``.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from functools import partial

import trio

from tests.fuzz.campaign import Report, run


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz", description="Fuzz the HTTP side of a whole server."
    )
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--case", type=int, help="only this one")
    asked = parser.parse_args()
    logging.basicConfig(level=logging.ERROR)
    limits = {"seconds": asked.seconds} if asked.case is None else {"first": asked.case, "cases": 1}
    print(f"seed {asked.seed}", flush=True)
    report = trio.run(partial(run, asked.seed, tell=_tell, **limits))
    print(
        f"{report.cases} cases: {dict(sorted(report.outcomes.items()))}; {report.grown:+,} bytes since the warm-up"
    )
    for found in report.found:
        case = found.case
        if case is None:
            print(f"after {report.cases} cases: {found.fault}")
            continue
        print(f"case {case.name} ({case.way}): {found.fault}\n  {case.method} {case.path} {case.headers}")
        print(f"  {case.body[:2000]!r}")
    return 1 if report.found else 0


def _tell(report: Report) -> None:
    if report.cases % 2000 < 200:
        print(f"{report.cases} cases, {len(report.found)} faults, {report.grown:+,} bytes", flush=True)


if __name__ == "__main__":
    sys.exit(main())
