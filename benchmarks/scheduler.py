"""What the scheduler costs: plans, whole steps, and whether either grows with what merely waits or is kept.

What is counted. CPU seconds of the trio thread for one step of requests that all decode, everything that Python does
from one launch to the next: the frozen picture of the world, `plan`, block tables and the launch call; the collector's
task, taking the result up, handing it out; the turn, that is every request's task waking up, taking its token in,
stepping its chart with the event's record, finding whether it ends, and putting a piece into its token buffer; digests
of blocks that fill up; trio's switches between all of these tasks, and the garbage collector.

What is not. The engine is a stub that answers every launch with tokens made beforehand; what is left of it is timed
and subtracted. Nothing is detokenised: the text side of a request is a stub that returns nothing.
Nobody waits at the token buffers, so nothing is delivered to HTTP handlers; they are emptied between runs. The thread
hop of an engine ends with trio noticing that the ticket's file descriptor is readable (`epoll_ctl`, `epoll_wait`, a
switch of tasks); that wait is timed alone, on a descriptor that is always readable as the stub's are, and subtracted
once a step. As in `luce serve`, the garbage collector leaves out what was there before the first request.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import cast

import attrs
import numpy as np
import numpy.typing as npt
import trio

from benchmarks.measure import ATTEMPTS, Attempts, Result, quiet_median, seconds_of
from benchmarks.turns import Prompt
from luce.actors.answer import AnswerText
from luce.actors.free_memory import machine_memory
from luce.actors.mailbox import Mailbox, Turn
from luce.actors.masks import MaskWorkers
from luce.actors.messages import ToEncoder, ToLoop
from luce.actors.options import ServiceOptions
from luce.actors.request import Request
from luce.actors.slot_memory import SlotMemory
from luce.actors.step_loop import StepLoop
from luce.actors.submission import Submission
from luce.actors.timers import Timers
from luce.actors.wiring import Wiring
from luce.charts.loader import load_chart
from luce.compute.host_memory import spare_what_stays
from luce.engines.fake.engine import fake_capabilities
from luce.engines.seam import (
    Capabilities,
    Outcome,
    PatchImage,
    SampledToken,
    Segment,
    SlotSpec,
    StepPlan,
    StepResult,
    Ticket,
    WorkOutcome,
)
from luce.sampling.parameters import SamplingParams
from luce.scheduling.plan import plan
from luce.scheduling.prefix_keys import PrefixKeys
from luce.scheduling.state import Lane, Limits, LoopState
from luce.trace.events import EventStream

__all__ = ["house", "main"]

BLOCK = 16
BLOCKS = 2_000
PROMPT = 16
SLOTS = (1, 4, 16, 64)
PLAN_GOAL_US = 150.0
STEP_GOALS_US = {1: 60.0, 64: 500.0}
SIZES = (10, 1_000, 100_000)
"""Of what must not matter: queued requests, cached blocks and prefixes."""
GROWTH_SLOTS = 4
STEPS = {1: 600, 4: 600, 16: 300, 64: 100}
"""In one run, by slots."""
HOPS = 2_000


def main() -> list[Result]:
    """The table of figures, in microseconds."""
    thresholds = gc.get_threshold()
    spare_what_stays()
    states = {ahead: _decoding(64, run_ahead=ahead) for ahead in (False, True)}
    results = [
        quiet_median(
            f"plan(), 64 slots, {BLOCKS:,} blocks{', run ahead' * ahead}",
            "us",
            lambda state=state: 1e6 * seconds_of(partial(plan, state)),  # type: ignore[misc]
            goal=PLAN_GOAL_US,
        )
        for ahead, state in states.items()
    ]
    hop = quiet_median("the engine's thread hop, subtracted below", "us", lambda: 1e6 * trio.run(_hop))
    results.append(hop)
    for slots in SLOTS:
        for depth in (1, 2):
            goal = STEP_GOALS_US.get(slots)
            results.append(_step(f"step, {slots} slots, depth {depth}", hop, slots, depth, goal=goal))
    for size in SIZES:
        name = f"step, {GROWTH_SLOTS} slots, {size:,} queued requests"
        results.append(_step(name, hop, GROWTH_SLOTS, 1, queued=size))
    for size in SIZES:
        name = f"step, {GROWTH_SLOTS} slots, {size:,} cached blocks and prefixes"
        results.append(_step(name, hop, GROWTH_SLOTS, 1, cached=size))
    gc.unfreeze()
    gc.set_threshold(*thresholds)
    return results


# -- plan() alone -----------------------------------------------------------------------------------------------------


def _decoding(slots: int, *, run_ahead: bool) -> LoopState:
    """All slots decode, and every sixteenth needs a block for its next row."""
    each = BLOCKS // slots - 1
    lanes = []
    for slot in range(slots):
        row = (each - 2) * BLOCK + slot % BLOCK
        lanes.append(
            Lane(
                slot=slot,
                order=slot,
                next_row=row,
                prompt_rows=PROMPT,
                ready_rows=PROMPT,
                last_row=each * BLOCK,
                covered_rows=-(-row // BLOCK) * BLOCK,
                in_flight=run_ahead,
                busy=run_ahead,
            )
        )
    return LoopState(
        limits=Limits(slots, BLOCK, 64),
        lanes=tuple(lanes),
        waiting=(),
        free_slots=(),
        available_blocks=BLOCKS - slots * (each - 1),
        run_ahead=run_ahead,
    )


# -- whole steps ------------------------------------------------------------------------------------------------------


@attrs.frozen
class _Ticket:
    number: int
    fd: int
    result: StepResult


class _Prepared:
    """An engine that has every answer ready. Its descriptor is always readable. It is also the benchmark's stopwatch:
    it sees every launch.
    """

    def __init__(self, capabilities: Capabilities) -> None:
        self.capabilities = capabilities
        token = (SampledToken(7),)
        self._decoded = [Outcome(slot, 1, token) for slot in range(capabilities.num_slots)]
        self._fd = os.eventfd(1, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._last = 0
        self._seconds = 0.0
        self._ran = trio.Event()

    async def seconds_of_step(self, steps: int) -> float:
        """CPU seconds from one launch to the next, mean of the next ``steps`` steps."""
        self._last, self._ran = -steps, trio.Event()
        await self._ran.wait()
        return self._seconds / steps

    def _watch(self, number: int) -> None:
        if self._last < 0:
            self._last = number - self._last
            self._seconds = -time.thread_time()
        elif number == self._last:
            self._seconds += time.thread_time()
            self._ran.set()

    def open(self, slot: int, spec: SlotSpec) -> None:
        pass

    def close(self, slot: int) -> None:
        pass

    def discard(self, handle: int) -> None:
        pass

    def encode(self, image: PatchImage) -> npt.NDArray[np.float32]:
        raise NotImplementedError

    def launch(self, step: StepPlan) -> _Ticket:
        if self._last:
            self._watch(step.number)
        started = time.thread_time()
        ticket = self._answer(step)
        self._seconds -= time.thread_time() - started
        return ticket

    def _answer(self, step: StepPlan) -> _Ticket:
        decoded = self._decoded
        outcomes = tuple(
            [
                decoded[s.slot] if s.sample and s.count == 1 else _prefilled(s, decoded[s.slot])
                for s in step.segments
            ]
        )
        work = tuple(WorkOutcome(item.slot) for item in step.work)
        return _Ticket(step.number, self._fd, StepResult(step.number, outcomes, 0.0, work))

    def collect(self, ticket: Ticket) -> StepResult:
        return cast(_Ticket, ticket).result

    def shutdown(self) -> None:
        os.close(self._fd)


def _prefilled(segment: Segment, decoded: Outcome) -> Outcome:
    return Outcome(segment.slot, segment.count, decoded.tokens if segment.sample else ())


class _NoText:
    """The text side of a request, with no text."""

    stopped = False

    def push(self, token: int, *, ends: bool) -> str:
        return ""

    def flush(self) -> str:
        return ""


def _step(
    name: str,
    hop: Result,
    slots: int,
    depth: int,
    *,
    goal: float | None = None,
    queued: int = 0,
    cached: int = 0,
) -> Result:
    async def measured() -> Result:
        attempts = Attempts()
        async with house(slots, depth, queued=queued, cached=cached) as (engine, loop):
            while attempts.wanted:
                attempts.start()
                taken = await engine.seconds_of_step(STEPS[slots])
                attempts.stop(1e6 * taken - hop.value)
                for request in loop.running.values():
                    while len(request.buffer):
                        await request.buffer.get()
        return attempts.result(name, "us", goal)

    return trio.run(measured)


@asynccontextmanager
async def house(
    slots: int, depth: int, *, queued: int = 0, cached: int = 0, runs: int = ATTEMPTS
) -> AsyncIterator[tuple[_Prepared, StepLoop]]:
    """A step loop with a request in every slot, all decoding, and with what must not matter."""
    rows = PROMPT + (runs + 1) * STEPS[slots]
    capabilities = fake_capabilities(
        num_slots=slots, num_blocks=slots * rows // BLOCK + cached, max_context=rows, block_size=BLOCK
    )
    engine = _Prepared(capabilities)
    turn = Turn()
    options = ServiceOptions(depth=depth, coalesce=0.0, prefill_budget=None, buffer_limit=rows)
    wiring = Wiring(
        options=options,
        capabilities=capabilities,
        turn=turn,
        timers=Timers(),
        events=EventStream(trio.lowlevel.current_clock().current_time),
        free_memory=machine_memory,
        loop=Mailbox[ToLoop](turn, turn.waker),
        encoder=Mailbox[ToEncoder](turn),
        masks=MaskWorkers(),
        request_chart=load_chart("request"),
        forget=lambda request: None,
    )
    loop = StepLoop(engine, wiring)
    _fill_caches(loop.memory, cached)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wiring.timers.run)
        nursery.start_soon(loop.run)
        for index in range(slots + queued):
            request = Request(
                _submission(index, rows - PROMPT),
                index,
                wiring,
                cast(AnswerText, _NoText()),
                trio.current_time(),
            )
            request.start()
            nursery.start_soon(request.run)
        await engine.seconds_of_step(10)
        assert len(loop.running) == slots and len(loop.waiting) == queued
        assert all(request.machine.active("decoding") for request in loop.running.values())
        assert loop.memory.pool.cached == cached <= len(loop.memory.cache.index)
        yield engine, loop
        assert len(loop.running) == slots and len(loop.waiting) == queued
        nursery.cancel_scope.cancel()
    engine.shutdown()


def _submission(index: int, max_tokens: int) -> Submission:
    ids = np.full(PROMPT, index % 256, np.int32)
    return Submission(
        id=f"request-{index}",
        prompt=Prompt(ids, np.tile(np.arange(PROMPT, dtype=np.int32), (3, 1))),
        images=(),
        params=SamplingParams(temperature=0, max_tokens=max_tokens),
    )


def _fill_caches(memory: SlotMemory, count: int) -> None:
    """As many prefixes of one block each, with a snapshot, as requests that have ended leave them."""
    index = memory.cache.index
    for number in range(count):
        keys = PrefixKeys(np.arange(number + 1000, number + 1001 + BLOCK, dtype=np.int32), BLOCK, b"")
        hold = memory.pool.allocate(1)
        memory.pool.fill(hold, 0, keys.block_digests(0, 1))
        memory.pool.release(hold)
        entry = index.begin(keys, BLOCK, number, device_bytes=0)
        assert entry is not None
        index.filled(entry, number)


# -- the hop ----------------------------------------------------------------------------------------------------------


async def _hop() -> float:
    """CPU seconds of noticing that a descriptor is readable."""
    with _readable() as fd:
        started = time.thread_time()
        for _ in range(HOPS):
            await trio.lowlevel.wait_readable(fd)
        return (time.thread_time() - started) / HOPS


@contextmanager
def _readable() -> Iterator[int]:
    fd = os.eventfd(1, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)
