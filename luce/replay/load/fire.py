"""The run: requests are prepared ahead in a thread and sent when they are due, whatever the server does."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import attrs
import trio

from luce.errors import LuceError
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

    Where the trace cannot be read on, what stands before is sent and answered, and :attr:`Tally.cut` says why.

    Args:
        watch: gets the tally before the first arrival.

    Raises:
        LuceError: the trace cannot be read, and nothing of it was sent.
    """
    sender, receiver = trio.open_memory_channel[list[Prepared]](BATCHES)
    tally = Tally(0.0)
    with _readily():
        async with metronome() as beat, trio.open_nursery() as nursery:
            ready = trio.Event()
            nursery.start_soon(_prepare, enumerate(requests), writer, sender, ready, tally)
            await ready.wait()
            tally.start = trio.current_time() + AHEAD
            watch(tally)
            async with trio.open_nursery() as clients:
                async for batch in receiver:
                    for given in batch:
                        await _release(target, given, tally, beat, limits, clients)
                tally.next_due = None
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
    tally.next_due = given.due
    await trio.sleep_until(due)
    tally.due(given.due)
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
    tally: Tally,
) -> None:
    """Until everything is read, or cannot be. ``ready`` is set when as much waits as may."""
    async with sender:
        batch = _Batch()
        while not batch.over:
            batch = await trio.to_thread.run_sync(_batch, numbered, writer)
            if batch.error is not None:
                if not ready.is_set():
                    raise batch.error
                tally.cut = str(batch.error)
            if batch.made:
                await sender.send(batch.made)
            if sender.statistics().current_buffer_used == BATCHES:
                ready.set()
    ready.set()


@attrs.define
class _Batch:
    """Requests that were prepared in one go."""

    made: list[Prepared] = attrs.field(factory=list)
    over: bool = False
    """Nothing comes behind them."""
    error: LuceError | None = None
    """Why."""


def _batch(numbered: Iterator[tuple[int, LoadRequest]], writer: Writer) -> _Batch:
    batch, size = _Batch(), 0
    try:
        for number, request in numbered:
            batch.made.append(writer.prepared(number, request))
            size += len(batch.made[-1].body or b"")
            if len(batch.made) == BATCH or size > BATCH_BYTES:
                return batch
    except LuceError as error:
        batch.error = error
    batch.over = True
    return batch
