"""A crowd that behaves badly, drawn from a seed: bursts, shared beginnings, growing chats, pictures that come again,
clients that leave, stall, ask for too much or have no time."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import attrs
import numpy as np

from luce.engines.fake.engine import fake_capabilities
from luce.engines.fake.times import Times
from luce.engines.seam import Capabilities
from tests.actors.rules import ByRule
from tests.sim.requests import make_submission, picture_of, prompt_of, text_of
from tests.sim.simulator import Client, Faults, Report, simulate

__all__ = ["BROKEN", "crowd", "serve_crowd"]

ROOTS = 4
"""System prompts."""
CHATS = 8
"""Conversations; each grows by a few rows every time it is asked again, and begins anew after a few."""
TURNS = 8
PICTURES = 60
BROKEN = frozenset(picture_of(f"picture {number}", 4).digest for number in range(3))
"""They cannot be encoded."""

RULES = ("c", "fffffffcccc", "ffrrc", "fcf")
"""What the tokens of constrained answers need, see :class:`ByRule`."""

TIMES = Times(step=0.01, row=0.0004, patch=0.002, work=0.002, saved_row=1e-4, restored_row=1e-4)
CALM = Faults()
FAULTY = Faults(rows=0.15, steps=0.05, copies=0.4, pictures=BROKEN)
# Five or six requests fit into the pool as they begin and three or four as they end; two dozen snapshots and one or
# two parked requests fit into host memory.
OPTIONS = {
    "prefill_budget": 24,
    "max_queued": 24,
    "queue_timeout": 1.2,
    "client_timeout": 1.0,
    "buffer_limit": 6,
    "prefix_bytes": 6_000,
    "park_bytes": 300,
}


def small(**changes: object) -> Capabilities:
    settings = {"num_slots": 8, "block_size": 4, "num_blocks": 76, "max_context": 200}
    return fake_capabilities(**(settings | {"bytes_per_token": 2, "bytes_per_snapshot": 100} | changes))


def crowd(seed: int, count: int) -> Iterator[Client]:
    """In order of arrival, some thirteen a second."""
    rng = random.Random(seed)
    now, burst = 0.0, 0
    turns = [0] * CHATS
    for number in range(count):
        if burst:
            burst -= 1
        else:
            now += rng.expovariate(10.0)
            burst = rng.randrange(8, 40) if rng.random() < 0.015 else 0
        yield _client(rng, number, now, turns)


def _client(rng: random.Random, number: int, now: float, turns: list[int]) -> Client:
    chat = rng.randrange(CHATS)
    root = text_of(f"root {chat % ROOTS}", 8 + 3 * (chat % ROOTS))
    if rng.random() < 0.6:
        begun, age = divmod(turns[chat], TURNS)
        turns[chat] += 1
        name = f"chat {chat}, {begun}"
        rest, ends = text_of(name, 5 + 6 * age), [len(root) + 5 + 6 * turn for turn in range(age)]
    else:
        rest, ends = text_of(f"request {number}", rng.randrange(1, 40)), []
    pictures = rng.choice([0, 0, 0, 1, 1, 2]) if chat % 2 else 0
    images = [picture_of(f"picture {rng.randrange(PICTURES)}", 4) for _ in range(pictures)]
    prompt = prompt_of(np.concatenate([root, rest]), images, [len(root), *ends])
    tokens = 250 if rng.random() < 0.005 else 1 + int(rng.expovariate(1 / 18)) % 90
    leaves = rng.randrange(1, 25) if rng.random() < 0.12 else None
    patience = rng.uniform(0.0, 3.0) if rng.random() < 0.06 else float("inf")
    stalls = rng.random() < 0.05
    asked = make_submission(f"r{number}", prompt, images, tokens, number)
    if number % 7 == 3:
        asked = attrs.evolve(asked, constraint=ByRule(RULES[number % len(RULES)]))
    if number % 24 == 17:
        asked = attrs.evolve(asked, timeout=0.05 + number % 100 / 40)
    return Client(
        now,
        asked,
        choices=2 + number % 3 if number % 16 == 9 else 1,
        leaves_after=leaves,
        patience=patience,
        pauses_after=rng.randrange(1, 10) if stalls else None,
        pause=rng.choice([0.2, 0.8, 3.0]) if stalls else 0.0,
    )


def serve_crowd(
    seed: int,
    count: int,
    *,
    depth: int,
    faults: Faults = FAULTY,
    trace: Path | None = None,
    **changes: object,
) -> Report:
    """Serve ``count`` of them. ``trace``: record it there. ``changes``: of the engine's capabilities."""
    report = simulate(
        seed,
        list(crowd(seed, count)),
        small(**changes),
        TIMES,
        faults,
        trace,
        depth=depth,
        image_bytes=400,
        **OPTIONS,
    )
    metrics, ends = (
        report.metrics,
        {reason: report.count(reason) for reason in ("length", "cancelled", "error")},
    )
    print(
        f"\n{count} requests in {report.seconds:.0f} virtual s, depth {depth}: {ends}, {report.refused} refused; "
        f"{metrics.steps} steps, {metrics.rows} rows, {metrics.lanes / metrics.steps:.1f} lanes a step; "
        f"{metrics.saves} saves, {metrics.drops} drops, {metrics.resumes} resumes; {report.prefixes}; "
        f"mailboxes at most {report.longest}"
    )
    return report
