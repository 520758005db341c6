"""Runs cases against a whole server, several at a time, and looks at the server between them."""

from __future__ import annotations

import itertools
import logging
from collections import Counter
from collections.abc import Callable, Iterator

import attrs
import httpx
import psutil
import trio

from luce.http.app import create_app
from luce.http.options import HttpOptions
from tests.faults.whole import Live, live
from tests.fuzz.cases import Case, make_case
from tests.fuzz.checks import Fault, check
from tests.fuzz.transport import Reply, send

__all__ = ["CONTEXT", "Found", "Report", "run"]

AT_ONCE = 4
CONTEXT = 640
EVERY = 200
"""Cases after which the server is looked at."""
WARM_UP = 1000
"""Cases until its memory counts: caches fill, and the allocator's arenas."""
GROWTH = 256 << 20
"""Bytes that it may take more from then on."""
PLAIN = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8, "temperature": 0, "seed": 1}


@attrs.frozen
class Found:
    case: Case | None
    """None: after a number of cases, of which any may have done it."""
    fault: str


@attrs.define
class Report:
    cases: int = 0
    outcomes: Counter[str] = attrs.field(factory=Counter)
    """By status, "left" where the client had gone."""
    found: list[Found] = attrs.field(factory=list)
    grown: int = 0
    """Bytes since the warm-up."""


async def run(
    seed: int, *, cases: int | None = None, seconds: float | None = None, first: int = 0,
    tell: Callable[[Report], None] = lambda report: None,
) -> Report:  # fmt: skip
    """Run cases until there were so many, or for so long.

    Args:
        first: number of the first case.
        tell: called whenever the server was looked at.
    """
    report = Report()
    numbers = itertools.count(first) if cases is None else iter(range(first, first + cases))
    end = trio.current_time() + (float("inf") if seconds is None else seconds)
    async with live(slots=3, context=CONTEXT, max_queued=64) as server:
        app = create_app(server.service, server.model, HttpOptions())
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://x", timeout=None) as client:
            expected = await _plain(server)
            base = 0
            while not report.found and trio.current_time() < end:
                batch = list(itertools.islice(numbers, EVERY))
                if not batch:
                    break
                await _batch(seed, iter(batch), end, server, client, report)
                await _look(server, expected, report)
                if app.records or app.bodies.held:
                    report.found.append(
                        Found(None, f"{len(app.records)} requests, {app.bodies.held} bytes are left")
                    )
                if report.cases >= WARM_UP:
                    now = psutil.Process().memory_info().rss
                    base = base or now
                    report.grown = now - base
                    if report.grown > GROWTH:
                        report.found.append(Found(None, f"memory grew by {report.grown} bytes"))
                tell(report)
    return report


async def _batch(
    seed: int, numbers: Iterator[int], end: float, server: Live, client: httpx.AsyncClient, report: Report
) -> None:
    async def worker() -> None:
        for number in numbers:
            if trio.current_time() >= end:
                return
            await _one(make_case(seed, number), server, client, report)

    async with trio.open_nursery() as nursery:
        for _ in range(AT_ONCE):
            nursery.start_soon(worker)


async def _one(case: Case, server: Live, client: httpx.AsyncClient, report: Report) -> None:
    report.cases += 1
    reply: Reply | None = None
    try:
        reply = await send(case, server.server.port, client)
        if reply is not None:
            check(case, reply)
    except Fault as fault:
        report.found.append(Found(case, str(fault)))
    except trio.TooSlowError:
        report.found.append(Found(case, "it hangs"))
    except Exception as error:
        logging.getLogger(__name__).exception("%s", case.name)
        report.found.append(Found(case, f"{type(error).__name__}: {error}"))
    report.outcomes["left" if reply is None else str(reply.status)] += 1


async def _look(server: Live, expected: str, report: Report) -> None:
    """Nothing may be left of the cases, and a plain request gets its answer."""
    with trio.move_on_after(20) as patience:
        while server.service.requests:  # noqa: ASYNC110 - of requests that others end there is no event
            await trio.sleep(0.01)
    slots = (await server.client.get("/slots")).json()
    if patience.cancelled_caught or slots["free"] != slots["slots"] or slots["requests"]:
        report.found.append(Found(None, f"slots are held: {slots}"))
    elif (answer := await _plain(server)) != expected:
        report.found.append(Found(None, f"a plain request gets {answer!r}, not {expected!r}"))


async def _plain(server: Live) -> str:
    answer = (await server.post(PLAIN)).json()
    return str(answer["choices"][0]["message"])
