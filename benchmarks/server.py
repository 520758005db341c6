"""A `luce serve` process over loopback HTTP: speed, first token, pauses, memory and start.

Client and server share the machine, so all of it is timed by the wall. Answers are greedy and of fixed lengths
(`ignore_eos`), so the figures do not depend on what the model says.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Awaitable, Callable

import httpx
import trio

from benchmarks.client import Arrivals, Child, ask, serving
from benchmarks.measure import Result, quiet_median
from benchmarks.pictures import data_url, png

__all__ = ["main"]

SLOTS = 4
TOKENS = 256
QUESTION = "Which bar is the tallest, and what is its value?"
PICTURE = (192, 128)
LOADED_TOKENS = 400
"""Of the text stream beside which a request with pictures arrives."""
PICTURES = 8
_SEEDS = itertools.count()
"""Every picture is a new one, which no cache knows."""

Case = Callable[[httpx.AsyncClient], Awaitable[float]]


def main() -> list[Result]:
    starts = quiet_median("process start to /ready", "ms", _start, goal=5000, wall=True, runs=3)
    with serving("--slots", str(SLOTS)) as child:

        def measured(name: str, unit: str, case: Case, goal: float | None = None) -> Result:
            return quiet_median(name, unit, lambda: trio.run(_run, case, child), goal=goal, wall=True)

        results = [
            starts,
            measured("decode, one stream", "tok/s", _alone, 80),
            measured(f"decode, {SLOTS} streams together", "tok/s", _together, 250),
            measured("first token, text", "ms", _first_of_text),
            measured("first token, one picture", "ms", _first_of_picture, 500),
            measured("longest pause of a text stream alone", "ms", _pause_alone),
            measured(f"…while a request with {PICTURES} pictures arrives", "ms", _pause_beside, 500),
            measured(f"CPU time of the server, {SLOTS} streams together", "ms/token", _cost(child)),
        ]
        return [
            *results,
            quiet_median("resident memory of the server, now", "MB", lambda: child.resident, goal=500),
            quiet_median("…at most, since its start", "MB", lambda: child.most_resident),
        ]


def _start() -> float:
    with serving("--slots", str(SLOTS)) as child:
        return 1000 * child.seconds_to_ready


async def _run(case: Case, child: Child) -> float:
    async with httpx.AsyncClient(base_url=child.url, timeout=120) as client:
        await client.get("/health")  # a connection is open before anything is timed
        return await case(client)


async def _alone(client: httpx.AsyncClient) -> float:
    return _rate([await ask(client, QUESTION, [], TOKENS)])


async def _together(client: httpx.AsyncClient) -> float:
    answers: list[Arrivals] = []

    async def one(index: int) -> None:
        answers.append(await ask(client, f"{index}: {QUESTION}", [], TOKENS))

    async with trio.open_nursery() as nursery:
        for index in range(SLOTS):
            nursery.start_soon(one, index)
    return _rate(answers)


def _rate(answers: list[Arrivals]) -> float:
    """Tokens a second from the first of all to the last of all; each answer's first one is not counted."""
    first = min(answer.pieces[0] for answer in answers)
    last = max(answer.pieces[-1] for answer in answers)
    return sum(answer.tokens - 1 for answer in answers) / (last - first)


async def _first_of_text(client: httpx.AsyncClient) -> float:
    return 1000 * (await ask(client, QUESTION, [], 8)).first


async def _first_of_picture(client: httpx.AsyncClient) -> float:
    return 1000 * (await ask(client, QUESTION, [data_url(png(*PICTURE, next(_SEEDS)))], 8)).first


async def _pause_alone(client: httpx.AsyncClient) -> float:
    answer = await ask(client, QUESTION, [], LOADED_TOKENS)
    return 1000 * _longest(list(answer.pieces), answer.pieces[0], answer.pieces[-1])


async def _pause_beside(client: httpx.AsyncClient) -> float:
    """The longest wait between two pieces of a text stream from the arrival of the pictures to their answer's end."""
    pictures = [data_url(png(*PICTURE, next(_SEEDS))) for _ in range(PICTURES)]
    pieces: list[float] = []
    streaming = trio.Event()
    asked = ended = 0.0

    def arrived(when: float) -> None:
        pieces.append(when)
        if len(pieces) == 20:
            streaming.set()

    async def beside() -> None:
        nonlocal asked, ended
        await streaming.wait()
        asked = time.perf_counter()
        await ask(client, "Which chart has the tallest bar?", pictures, 16)
        ended = time.perf_counter()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(beside)
        await ask(client, QUESTION, [], LOADED_TOKENS, arrived)
    assert asked < pieces[-1], "the stream had ended before the pictures came"
    return 1000 * _longest(pieces, asked, ended)


def _longest(pieces: list[float], start: float, end: float) -> float:
    return max(
        after - before for before, after in itertools.pairwise(pieces) if after > start and before < end
    )


def _cost(child: Child) -> Case:
    async def case(client: httpx.AsyncClient) -> float:
        before = child.cpu_seconds
        await _together(client)
        return 1000 * (child.cpu_seconds - before) / (SLOTS * TOKENS)

    return case
