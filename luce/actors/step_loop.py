"""The step loop: `statecharts/loop.scxml`, the one actor that plans, launches and hands out results.

Theory of operation. The loop reads its mailbox (`admit`, `retire`, `rows.ready` from requests, `drain`, `abort` from
the server) and does two things on its own account:

- in *planning*, once every mailbox of the server is empty, it freezes the world, asks the pure
  :func:`luce.scheduling.plan.plan`, and either grants slots (and plans again when the requests have answered) or
  launches a step;
- in *turn*, it hands a finished step's results to their requests and waits until all mailboxes are empty again.

Its own data is who waits, who holds which slot, and which steps are in flight. Everything about a request lives on
the request. Blocks and slot of a request that ends are freed when no step that holds a row of it is in flight.
"""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from itertools import islice

import attrs
import trio

from luce.actors.mailbox import Mailbox, Waker
from luce.actors.messages import ChunkDone, Plain, QueueExpired, SlotGranted, StepFailed, Token, ToLoop
from luce.actors.request import Request
from luce.actors.wiring import Wiring
from luce.charts.guards import guard
from luce.charts.interpreter import Machine, Send
from luce.charts.loader import load_chart
from luce.engines.seam import Engine, Outcome, Segment, SegmentKind, StepPlan, Ticket
from luce.errors import CapacityError, DeviceError, LuceError
from luce.scheduling.blocks import BlockPool, blocks_for
from luce.scheduling.plan import plan
from luce.scheduling.state import Decision, Lane, Limits, LoopState, Waiting

__all__ = ["StepLoop", "StepMetrics"]

log = logging.getLogger("luce.loop")


@attrs.define
class StepMetrics:
    """Counters over the loop's life; read by metrics and tests."""

    steps: int = 0
    rows: int = 0
    lanes: int = 0
    """Sum over steps of requests in the step: lanes / steps is the mean batch."""
    max_lanes: int = 0
    device_seconds: float = 0.0


@attrs.frozen(eq=False)
class Flight:
    """A launched step that is not collected yet."""

    plan: StepPlan
    ticket: Ticket
    requests: tuple[Request, ...]
    """Per segment, who it belongs to."""


class LoopGuards:
    """What `loop.scxml` may ask."""

    def __init__(self, loop: StepLoop) -> None:
        self._loop = loop

    @guard
    def run_ahead(self) -> bool:
        """May one more step be launched before the results of the one just launched?"""
        return len(self._loop.flights) < self._loop.depth

    @guard
    def idle(self) -> bool:
        """Nobody waits and nobody holds a slot."""
        return not self._loop.waiting and not self._loop.running


class StepLoop:
    """Args:
    engine: what steps run on. The loop is the only one that opens, closes and launches.
    wiring: the other actors' mailboxes.
    """

    def __init__(self, engine: Engine, wiring: Wiring) -> None:
        capabilities = engine.capabilities
        self.engine = engine
        self.depth = min(wiring.options.depth, capabilities.max_depth)
        self.mailbox: Mailbox[ToLoop] = wiring.loop
        self.machine = Machine(load_chart("loop"), LoopGuards(self), observer=wiring.events.observe)
        self.limits = Limits(capabilities.num_slots, capabilities.block_size, wiring.options.prefill_budget)
        self.pool = BlockPool(capabilities.num_blocks, capabilities.block_size)
        self.waiting: OrderedDict[int, Request] = OrderedDict()
        self.running: dict[int, Request] = {}
        """By slot."""
        self.flights: deque[Flight] = deque()
        self.metrics = StepMetrics()
        self._free_slots = list(range(capabilities.num_slots - 1, -1, -1))
        self._retiring: set[int] = set()
        """Slots whose request has ended while a step held a row of it."""
        self._wiring = wiring
        self._launched = Waker()
        self._landed = False
        """The oldest step in flight is done and not yet taken up: the device's mailbox, one bit wide."""
        self._number = 0

    # -- the task -------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve until the chart is final."""
        self._deliver(self.machine.start(), None)
        machine = self.machine
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._collector)
            while not machine.finished:
                if machine.active("planning"):
                    await self._settle()
                    if machine.active("planning"):
                        self._plan()
                elif machine.active("ahead"):
                    self._launch_or_not(plan(self._freeze(run_ahead=True)))
                elif machine.active("turn"):
                    self._hand_out()
                    await self._settle()
                    self._feed("turn.done")
                elif machine.active("in_flight") and self._landed:
                    self._landed = False
                    self._feed("step.done")
                else:
                    if not self.mailbox:
                        await self._wiring.turn.waker.sleep()
                    self._read_mail()
            nursery.cancel_scope.cancel()
        self.mailbox.close()

    async def _settle(self) -> None:
        """Return when every mailbox of the server, this one included, is empty (the turn rule)."""
        turn = self._wiring.turn
        self._read_mail()
        while turn.pending:
            await turn.waker.sleep()
            self._read_mail()

    def _read_mail(self) -> None:
        while (message := self.mailbox.pop()) is not None:
            try:
                self._handle(message)
            finally:
                self.mailbox.handled()

    def _handle(self, message: ToLoop) -> None:
        request = message.request
        if message.event == "admit":
            assert request is not None
            self.waiting[request.order] = request
        elif message.event == "retire":
            assert request is not None
            self._retire(request)
        self._feed(message.event, request)

    def _feed(self, event: str, sender: Request | None = None) -> None:
        self._deliver(self.machine.feed(event), sender)

    def _deliver(self, sends: tuple[Send, ...], sender: Request | None) -> None:
        for send in sends:
            if send.target == "timer":
                self._wiring.timers.obey("loop", send, self._wiring.options.delays, self._post)
            elif send.target == "requests":
                for request in [*self.waiting.values(), *self.running.values()]:
                    request.abort(CapacityError("the server is shutting down", retry_after=5))
            else:
                assert send.event == "queue.expired", send
                for waiting in self.waiting.values() if send.target == "waiting" else [sender]:
                    assert waiting is not None
                    error = CapacityError("the server is shutting down", retry_after=5)
                    waiting.mailbox.put(QueueExpired(error))

    def _post(self, event: str) -> None:
        self.mailbox.put(ToLoop(event))

    # -- planning -------------------------------------------------------------------------------------------------

    def _plan(self) -> None:
        decision = plan(self._freeze(run_ahead=False))
        if decision.grants:
            self._grant(decision)  # stays in planning: the requests answer, then we plan again
        else:
            self._launch_or_not(decision)

    def _launch_or_not(self, decision: Decision) -> None:
        if decision.segments:
            self._launch(decision.segments)
            self._feed("plan.rows")
        else:
            if not self.flights:
                self.pool.check_integrity(self.running)
            self._feed("plan.empty")

    def _freeze(self, *, run_ahead: bool) -> LoopState:
        continuing = {
            segment.slot for flight in self.flights for segment in flight.plan.segments if segment.sample
        }
        return LoopState(
            limits=self.limits,
            lanes=tuple(
                Lane(
                    slot=slot,
                    order=request.order,
                    next_row=request.next_row,
                    prompt_rows=request.prompt_rows,
                    ready_rows=request.ready_rows,
                    last_row=request.row_limit - 1,
                    covered_rows=request.row_limit,
                    runnable=request.runnable,
                    in_flight=slot in continuing,
                )
                for slot, request in self.running.items()
                if slot not in self._retiring
            ),
            waiting=tuple(
                Waiting(key, blocks_for(request.row_limit, self.limits.block_size))
                for key, request in islice(self.waiting.items(), len(self._free_slots))
            ),
            free_slots=tuple(reversed(self._free_slots)),
            available_blocks=self.pool.available,
            admitting=self.machine.active("open"),
            run_ahead=run_ahead,
        )

    def _grant(self, decision: Decision) -> None:
        for grant in decision.grants:
            request = self.waiting.pop(grant.key)
            self._free_slots.remove(grant.slot)
            self.pool.reserve(grant.slot, request.row_limit)
            self.running[grant.slot] = request
            self.engine.open(grant.slot, request.spec)
            request.mailbox.put(SlotGranted(grant.slot))

    def _launch(self, segments: tuple[Segment, ...]) -> None:
        tables = tuple(self.pool.grow(segment.slot, segment.start + segment.count) for segment in segments)
        self._number += 1
        step = StepPlan(self._number, segments, tables)
        requests = tuple(self.running[segment.slot] for segment in segments)
        for segment, request in zip(segments, requests, strict=True):
            request.next_row = segment.start + segment.count
        self.flights.append(Flight(step, self.engine.launch(step), requests))
        self._launched.wake()
        metrics = self.metrics
        metrics.steps += 1
        metrics.rows += step.num_rows
        metrics.lanes += len(segments)
        metrics.max_lanes = max(metrics.max_lanes, len(segments))

    # -- results --------------------------------------------------------------------------------------------------

    async def _collector(self) -> None:
        """Notices a finished step. The only task that waits for the device."""
        seen: Flight | None = None
        while True:
            if not self.flights or self.flights[0] is seen:
                await self._launched.sleep()
                continue
            seen = self.flights[0]
            await trio.lowlevel.wait_readable(seen.ticket.fd)
            self._landed = True
            self._wiring.turn.waker.wake()

    def _hand_out(self) -> None:
        """Collect the oldest step and send every lane its part."""
        flight = self.flights[0]
        try:
            result = self.engine.collect(flight.ticket)
        except LuceError as error:
            log.exception("step %d failed", flight.plan.number)
            outcomes = tuple(Outcome(s.slot, 0, error=str(error)) for s in flight.plan.segments)
        else:
            outcomes = result.outcomes
            self.metrics.device_seconds += result.seconds
        self.flights.popleft()
        self._launched.wake()
        for segment, request, outcome in zip(flight.plan.segments, flight.requests, outcomes, strict=True):
            self._hand_to(request, segment, outcome)
        for slot in sorted(self._retiring):
            self._release_if_still(slot)

    def _hand_to(self, request: Request, segment: Segment, outcome: Outcome) -> None:
        mailbox = request.mailbox
        if outcome.error is not None:
            mailbox.put(StepFailed(DeviceError(outcome.error)))
            return
        if segment.kind is SegmentKind.PREFILL:
            mailbox.put(ChunkDone(outcome.kept))
        for token in outcome.tokens:
            mailbox.put(Token(token))

    # -- the end of a request -------------------------------------------------------------------------------------

    def _retire(self, request: Request) -> None:
        """A request has ended: take it off the queue, or free its slot as soon as no step holds a row of it."""
        if self.waiting.pop(request.order, None) is not None:
            request.mailbox.put(Plain("retired"))
            return
        slot = request.slot  # set before anything else of a grant is handled
        if slot is None:
            request.mailbox.put(Plain("retired"))
            return
        self._retiring.add(slot)
        self._release_if_still(slot)

    def _release_if_still(self, slot: int) -> None:
        request = self.running[slot]
        if any(request in flight.requests for flight in self.flights):
            return
        self._retiring.discard(slot)
        del self.running[slot]
        self.engine.close(slot)
        self.pool.release(slot)
        self._free_slots.append(slot)
        request.mailbox.put(Plain("retired"))
