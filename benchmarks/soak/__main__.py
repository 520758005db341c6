"""``python -m benchmarks.soak [--minutes 30]``: traffic of every kind against a `luce serve` process, as `make serve`
starts it, while its resident memory is watched.

Texts, pictures, chats that grow, clients that cancel, disconnect or stop reading, and bad requests come from a few
connections at once, drawn from a seed. Ends with status 1 if memory grew by more than ``--bound`` after the warm-up,
if the server holds more files or threads at rest than before, if equal requests got different answers, or if anything
was answered in a way that it should not be.
"""

from __future__ import annotations

import argparse
import math
import signal
import sys
from random import Random

import attrs
import httpx
import trio

from benchmarks.client import Child, serving
from benchmarks.soak.clients import KINDS, Clients, Tally
from benchmarks.soak.memory import Growth, Holdings, Sample, growth, holdings
from benchmarks.soak.questions import GALLERY

PATIENCE = 120.0
"""Seconds that one request may take, waiting included."""
REST = 3.0
"""Seconds after which the server has let go of the last clients."""
SPARE_FILES = 4
"""Files that may be open beyond those at rest before: what was opened on first use and stays."""
SHOWN = 10
"""Faults that are written out."""


@attrs.frozen
class Settings:
    minutes: float
    warm_up: float
    """Minutes."""
    pictures: int
    """New ones to fill the caches with."""
    clients: int
    """At once."""
    seed: int
    bound: float
    """MB."""
    every: float
    """Seconds between two lines of progress."""
    flags: tuple[str, ...]


@attrs.frozen
class Outcome:
    tally: Tally
    growth: Growth
    most: float
    """MB that were ever resident."""
    before: Holdings
    """At rest, before the traffic."""
    after: Holdings
    """At rest, after it."""
    status: int | None
    """Of the server after a stop signal; None: it did not stop."""

    def faults(self, bound: float) -> list[str]:
        """Everything that should not be, one line each."""
        found = list(self.tally.wrong)
        if self.growth.grown > bound:
            found.append(
                f"resident memory grew by {self.growth.grown:.1f} MB after the warm-up; bound {bound:g} MB"
            )
        if self.after.files > self.before.files + SPARE_FILES:
            found.append(f"{self.after.files} files are open at rest, {self.before.files} were before")
        if self.status != 0:
            found.append(f"the server ended with {self.status} after a stop signal")
        found += [
            f"no client of the kind {kind} came to its end" for kind in KINDS if not self.tally.done[kind]
        ]
        return found


def main(arguments: list[str] | None = None) -> int:
    settings = parse(arguments)
    with serving(*settings.flags) as child:
        outcome = trio.run(soak, child, settings)
    report(outcome, settings)
    faults = outcome.faults(settings.bound)
    for fault in faults[:SHOWN]:
        print(f"WRONG: {fault}")
    if len(faults) > SHOWN:
        print(f"…and {len(faults) - SHOWN} more")
    return 1 if faults else 0


def parse(arguments: list[str] | None) -> Settings:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument("--minutes", type=_positive, default=30.0, help="how long (default 30)")
    parser.add_argument(
        "--warm-up", type=_positive, help="minutes until memory must stay (default 5, or a sixth)"
    )
    parser.add_argument(
        "--pictures",
        type=int,
        default=3200,
        help="new ones asked about first, to fill the caches (default 3200)",
    )
    parser.add_argument("--clients", type=int, default=8, help="clients at once (default 8)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--bound", type=_positive, default=24.0, help="MB that memory may grow by (default 24)"
    )
    parser.add_argument("--every", type=_positive, default=10.0, help="seconds between lines (default 10)")
    parser.add_argument("flags", nargs="*", help="of luce serve, after --")
    asked = parser.parse_args(arguments)
    warm_up = min(5.0, asked.minutes / 6) if asked.warm_up is None else asked.warm_up
    if warm_up >= asked.minutes:
        parser.error("--warm-up must be shorter than --minutes")
    if asked.clients < 1 or asked.pictures < 0:
        parser.error("--clients must be at least 1 and --pictures at least 0")
    return Settings(
        minutes=asked.minutes,
        warm_up=warm_up,
        pictures=asked.pictures,
        clients=asked.clients,
        seed=asked.seed,
        bound=asked.bound,
        every=asked.every,
        flags=tuple(asked.flags),
    )


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"must be above 0, not {text}")
    return value


async def soak(child: Child, settings: Settings) -> Outcome:
    """Raises RuntimeError: the server ended meanwhile."""

    def check() -> None:
        if (status := child.process.poll()) is not None:
            raise RuntimeError(f"the server ended with {status} in the middle of the traffic")

    pid, seconds = child.process.pid, 60 * settings.minutes
    samples: list[Sample] = []
    limits = httpx.Limits(max_connections=settings.clients, max_keepalive_connections=settings.clients)
    async with httpx.AsyncClient(base_url=child.url, timeout=PATIENCE, limits=limits) as client:
        clients = Clients(child.url, client, min(20.0, seconds / 10))
        before = holdings(pid)
        began = trio.current_time()

        async def seat(number: int) -> None:
            rng = Random(f"{settings.seed} {number}")
            weights = [weight for weight, _ in KINDS.values()]
            for _ in range(math.ceil(settings.pictures / GALLERY / settings.clients)):
                await clients.gallery(rng)
            for kind in list(KINDS)[number :: settings.clients]:  # every kind comes at least once
                await clients.ask(kind, rng)
            while trio.current_time() < began + seconds:
                check()
                [kind] = rng.choices(list(KINDS), weights)
                await clients.ask(kind, rng)

        async def watch() -> None:
            next_line = 0.0
            for second in range(1, math.floor(seconds) + 1):
                await trio.sleep_until(began + second)
                check()
                samples.append(Sample(second, holdings(pid).resident))
                if second >= next_line:
                    next_line = second + settings.every
                    print(progress(samples[-1], settings, clients.tally), flush=True)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            for number in range(settings.clients):
                nursery.start_soon(seat, number)
        (await client.get("/ready")).raise_for_status()
    await trio.sleep(REST)
    after, most = holdings(pid), child.most_resident
    child.process.send_signal(signal.SIGTERM)
    with trio.move_on_after(20):
        await trio.to_thread.run_sync(child.process.wait, abandon_on_cancel=True)
    return Outcome(
        clients.tally, growth(samples, 60 * settings.warm_up), most, before, after, child.process.poll()
    )


def progress(sample: Sample, settings: Settings, tally: Tally) -> str:
    minutes = sample.at / 60
    phase = "warming up" if minutes < settings.warm_up else "warm"
    return (
        f"{minutes:5.1f} of {settings.minutes:g} min  {sample.resident:7.1f} MB  {phase:10}  "
        f"{tally.done.total()} clients, {tally.tokens} tokens, {len(tally.wrong)} wrong"
        f"{': ' + tally.wrong[-1][:80] if tally.wrong else ''}"
    )


def report(outcome: Outcome, settings: Settings) -> None:
    tally, grown = outcome.tally, outcome.growth
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(tally.done.items()))
    print(f"clients: {kinds}; {tally.busy} refused with 503, {tally.too_long} for their length")
    print(
        f"{tally.tokens} tokens answered, {tally.cached_tokens} of prompts from the prefix cache; "
        f"{tally.compared} answers compared with an earlier one"
    )
    print(
        f"resident memory: {outcome.before.resident:.1f} MB at the start, {grown.before:.1f} MB after "
        f"{settings.warm_up:g} min, {grown.after:.1f} MB at the end, {outcome.most:.1f} MB at most; "
        f"slope {grown.slope:+.1f} MB an hour"
    )
    print(
        f"at rest: {outcome.before.files} files and {outcome.before.threads} threads before, "
        f"{outcome.after.files} and {outcome.after.threads} after"
    )


if __name__ == "__main__":
    sys.exit(main())
