"""The run: requests are prepared ahead in a thread and sent when they are due, whatever the server does."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import attrs
import trio

from luce.replay.load.bodies import Prepared, Writer
from luce.replay.load.client import ask
from luce.replay.load.metronome import Metronome, metronome
from luce.replay.load.request import LoadRequest
from luce.replay.load.tally import Outcome, Tally
from luce.replay.load.target import Target

__all__ = ["Limits", "fire"]

AHEAD = 1.0
"""Seconds before it is due that a client connects: so long may this process be kept from running, and no arrival is."""
BATCH = 16
BATCH_BYTES = 1 << 22
"""Of bodies that are prepared in one go."""
BATCHES = 8
"""That may wait."""
SWITCH = 0.0005
"""Seconds after which the preparing thread gives way."""


@attrs.frozen
class Limits:
    """Of a run."""

    timeout: float = 600.0
    """Seconds that an answer may take."""
    open: int = 10_000
    """Requests under way at once; more are counted as not sent, none is delayed."""


async def fire(
    target: Target,
    requests: Iterator[LoadRequest],
    writer: Writer,
    limits: Limits,
    watch: Callable[[Tally], None] = lambda tally: None,
) -> Tally:
    """Send all of them; ends with the last answer.

    Args:
        watch: gets the tally before the first arrival.

    Raises:
        TraceFileError: of the trace, where it is read.
    """
    sender, receiver = trio.open_memory_channel[list[Prepared]](BATCHES)
    tally = Tally(0.0)
    with _readily():
        async with metronome() as beat, trio.open_nursery() as nursery:
            ready = trio.Event()
            nursery.start_soon(_prepare, enumerate(requests), writer, sender, ready)
            await ready.wait()
            tally.start = trio.current_time() + AHEAD
            watch(tally)
            async with trio.open_nursery() as clients:
                async for batch in receiver:
                    for given in batch:
                        await _release(target, given, tally, beat, limits, clients)
    return tally


@contextmanager
def _readily() -> Iterator[None]:
    """The preparing thread gives way soon, and what was there before is left out of the collector's rounds, which
    would hold up reading for some 15 ms."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH)
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        sys.setswitchinterval(before)


async def _release(
    target: Target, given: Prepared, tally: Tally, beat: Metronome, limits: Limits, clients: trio.Nursery
) -> None:
    """Wait until it is nearly due, and let it go by itself."""
    due = tally.start + given.due - AHEAD
    await trio.sleep_until(due)
    tally.last_due = max(tally.last_due, given.due)
    why = given.why
    if given.body is not None and tally.open >= limits.open:
        why = f"{limits.open:,} requests were under way (--max-open)"
    if why:
        tally.end(Outcome(given.due, "unsent", why), trio.current_time())
        return
    tally.open += 1
    tally.most_open = max(tally.most_open, tally.open)
    clients.start_soon(ask, target, given, tally, beat, limits.timeout)


async def _prepare(
    numbered: Iterator[tuple[int, LoadRequest]],
    writer: Writer,
    sender: trio.MemorySendChannel[list[Prepared]],
    ready: trio.Event,
) -> None:
    """Until everything is read. ``ready`` is set when as much waits as may."""
    async with sender:
        while batch := await trio.to_thread.run_sync(_batch, numbered, writer):
            await sender.send(batch)
            if sender.statistics().current_buffer_used == BATCHES:
                ready.set()
    ready.set()


def _batch(numbered: Iterator[tuple[int, LoadRequest]], writer: Writer) -> list[Prepared]:
    made: list[Prepared] = []
    size = 0
    for number, request in numbered:
        made.append(writer.prepared(number, request))
        size += len(made[-1].body or b"")
        if len(made) == BATCH or size > BATCH_BYTES:
            break
    return made
