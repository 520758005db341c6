"""The step loop: `statecharts/loop.scxml`, the one actor that plans, launches and hands out results.

Theory of operation. The loop reads its mailbox (`admit`, `retire`, `rows.ready` from requests, `drain`, `abort` from
the server) and does two things on its own account:

- in *planning*, once every mailbox of the server is empty, it freezes the world, asks the policy
  (:func:`luce.scheduling.plan.plan`, a pure function), and either grants slots (and plans again when the requests have
  answered) or launches a step; while a step is in flight, or further arrivals are waited for, it lets in who has a
  picture, so that the encoder begins at once;
- in *turn*, it hands a finished step's results to their requests and waits until all mailboxes are empty again.

Its own data is who waits, who holds which slot, who is parked, and which steps are in flight. Everything about a
request lives on the request; slots, blocks and saved states are kept by :class:`SlotMemory`. Blocks and slot of a
request that ends are freed when no step that holds a row of it is in flight.
"""

from __future__ import annotations

import logging
from collections import OrderedDict, deque

import trio

from luce.actors.flight import Flight, StepMetrics
from luce.actors.freeze import freeze
from luce.actors.mailbox import Mailbox, Waker
from luce.actors.messages import Plain, QueueExpired, SlotGranted, ToLoop
from luce.actors.pace import note_pace
from luce.actors.queue_order import enqueue
from luce.actors.request import Request
from luce.actors.row_results import hand_on
from luce.actors.slot_memory import SlotMemory, WorkItem
from luce.actors.tracing import failed, landed, launched, recorded_policy
from luce.actors.wiring import Wiring
from luce.actors.work_results import end_work
from luce.charts.guards import guard
from luce.charts.interpreter import Machine, Send
from luce.charts.loader import load_chart
from luce.engines.seam import Engine, Mask, Outcome, Segment, StepPlan, WorkOutcome
from luce.errors import CapacityError, LuceError
from luce.scheduling.plan import plan
from luce.scheduling.staged_passes import StagedPass, pass_after, pass_limits, without
from luce.scheduling.state import Decision, Limits, Park, ParkKind, Policy
from luce.scheduling.step_pace import StepPace

__all__ = ["LoopGuards", "StepLoop"]

log = logging.getLogger("luce.loop")


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
        """Nobody waits, nobody is parked and nobody holds a slot."""
        loop = self._loop
        return not loop.waiting and not loop.parked and not loop.running


class StepLoop:
    """Args:
    engine: what steps run on. The loop is the only one that opens, closes and launches.
    wiring: the other actors' mailboxes.
    policy: what decides; tests of exactness pass one that parks requests without need.
    """

    def __init__(self, engine: Engine, wiring: Wiring, policy: Policy = plan) -> None:
        capabilities = engine.capabilities
        self.engine = engine
        self.depth = min(wiring.options.depth, capabilities.max_depth)
        self.mailbox: Mailbox[ToLoop] = wiring.loop
        self.machine = Machine(load_chart("loop"), LoopGuards(self), observer=wiring.events.observe)
        options = wiring.options
        self.limits = Limits(
            capabilities.num_slots,
            capabilities.block_size,
            options.prefill_budget,
            pass_limits(capabilities, options.staged_rows, options.staged_rows_alone),
            options.rows_before_picture,
        )
        self.memory = SlotMemory(
            engine, options.park_bytes, options.prefix_bytes, wiring.free_memory, wiring.events
        )
        self.waiting: OrderedDict[int, Request] = OrderedDict()
        self.running: dict[int, Request] = {}
        """By slot."""
        self.parked: dict[int, Request] = {}
        """Without a slot, by arrival number."""
        self.flights: deque[Flight] = deque()
        self.metrics = StepMetrics()
        self.retiring: set[int] = set()
        """Slots whose request has ended while a step held a row of it."""
        self.saving: set[int] = set()
        """Slots whose request is parked once the copy of its state is done."""
        self.pace = None if options.step_seconds is None else StepPace(options.step_seconds)
        self.staged_pass: StagedPass | None = None
        """The one that is between two of its slices."""
        self._wiring = wiring
        self.policy = policy
        self._decide = recorded_policy(policy, wiring.events)
        self._shown = False
        """Somebody has come with a picture, and nobody has been let in since."""
        self._launched = Waker()
        self._landed = False
        """The oldest step in flight is done and not yet taken up: the device's mailbox, one bit wide."""
        self._number = 0
        self.num_layers = capabilities.num_layers

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
                    self._launch_or_not(self._decide(freeze(self, run_ahead=True)))
                elif machine.active("turn"):
                    self._hand_out()
                    await self._settle()
                    self._feed("turn.done")
                elif machine.active("in_flight") and self._landed:
                    self._landed = False
                    self._feed("step.done")
                elif self._shown and self._between():
                    await self._let_in()
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
        while not turn.over():
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
            enqueue(self.waiting, request.order, request)
            self._shown |= bool(request.missing_images)
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
                for request in [*self.waiting.values(), *self.parked.values(), *self.running.values()]:
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
        self._shown = False
        decision = self._decide(freeze(self, run_ahead=False))
        if decision.moves:
            self._move(decision)  # stays in planning: the requests answer, then we plan again
        else:
            self._launch_or_not(decision)

    def _between(self) -> bool:
        """Is no plan due, and may somebody be let in? Not while a state is copied that he may find a moment later."""
        here = self.machine.active
        between = here("coalescing") or (here("in_flight") and not self._landed)
        return between and not self.memory.cache.capturing

    async def _let_in(self) -> None:
        """Between two plans: those who have pictures, unless a plan or a step's end comes first."""
        turn = self._wiring.turn
        while self._between():
            if turn.over():
                self._shown = False
                self._move(self._decide(freeze(self, run_ahead=False, early=True)))
                return
            await turn.waker.sleep()
            self._read_mail()

    def _launch_or_not(self, decision: Decision) -> None:
        ahead = self.machine.active("ahead")
        if decision.segments or (self.memory.work and not ahead):
            self._launch(decision.segments, [] if ahead else self.memory.take_work())
            self._feed("plan.rows")
        else:
            # Linear in what is stored, so only when nobody is there who would wait for it.
            if not (self.flights or self.running or self.waiting or self.parked):
                self.memory.check_integrity(())
            self._feed("plan.empty")

    def _move(self, decision: Decision) -> None:
        """Hand out slots, take them away under pressure, or give up on a request that cannot go on."""
        for grant in decision.grants:
            request = self.waiting[grant.key]
            if self.memory.entry_cost(request) > self.memory.pool.available:
                break  # the grants before took a prefix that it was to share
            del self.waiting[grant.key]
            self.memory.open(request, grant.slot)
            self.running[grant.slot] = request
            request.mailbox.put(SlotGranted(grant.slot))
        for resume in decision.resumes:
            self._resume(self.parked.pop(resume.key), resume.slot)
        for park in decision.parks:
            self._park(self.running[park.slot], park)
        for slot in decision.fails:
            request = self.running[slot]
            request.abort(
                CapacityError(
                    f"the key/value memory is full and nothing else can give way after {request.next_row} rows; "
                    "try again later or ask for fewer tokens",
                    retry_after=5,
                )
            )

    def _park(self, request: Request, park: Park) -> None:
        request.parks += 1
        if park.kind is ParkKind.SAVE:
            self.metrics.saves += 1
            self.saving.add(park.slot)
            self.memory.begin_save(request)
        else:
            self.metrics.drops += 1
            del self.running[park.slot]
            self.memory.close(request)
            self.parked[request.order] = request
        request.mailbox.put(Plain(park.kind.value))

    def _resume(self, request: Request, slot: int) -> None:
        self.metrics.resumes += 1
        self.running[slot] = request
        if request.saved is not None:
            self.memory.begin_restore(request, slot)  # `resume` follows when the state is there
        else:
            self.memory.open(request, slot)
            request.mailbox.put(Plain("resume"))

    def _launch(self, segments: tuple[Segment, ...], items: list[WorkItem]) -> None:
        requests = tuple([self.running[segment.slot] for segment in segments])
        tables = self.memory.tables(segments, requests)
        changes = self.memory.pool.take_changes()
        rows = 0
        masked = False
        for (_, _, start, count, _, _, layers), request in zip(segments, requests, strict=True):
            if layers is None:
                request.next_row = start + count
                rows += count
                if request.mask is not None:
                    masked = True
            elif layers[1] == self.num_layers:
                request.next_row = start + count
        self._number += 1
        step = StepPlan(
            self._number,
            segments,
            tables,
            work=tuple(work for work, _ in items),
            fresh_blocks=changes.fresh,
            freed_blocks=changes.freed,
            masks=_masks(segments, requests) if masked else (),
        )
        if self.limits.passes is not None:
            self._note_pass(segments, requests)
        self.flights.append(
            Flight(step, self.engine.launch(step), requests, tuple(request for _, request in items))
        )
        self._launched.wake()
        self._wiring.events.detail(launched, step.number, len(segments), step.work, changes)
        self._wiring.events.lull()
        metrics = self.metrics
        metrics.steps += 1
        metrics.step_rows.add(rows)
        metrics.lanes += len(segments)
        metrics.max_lanes = max(metrics.max_lanes, len(segments))

    def _note_pass(self, segments: tuple[Segment, ...], requests: tuple[Request, ...]) -> None:
        joined = [r for s, r in zip(segments, requests, strict=True) if s.layers and s.layers[0] == 0]
        for request in joined:
            request.mailbox.put(Plain("pass.joined"))
        self.metrics.passes += len(joined) > 0
        self.metrics.shared_passes += len(joined) > 1
        self.staged_pass = pass_after(self.staged_pass, segments, self.num_layers)

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
            moved, seconds = tuple(WorkOutcome(work.slot, error=str(error)) for work in flight.plan.work), 0.0
        else:
            outcomes, moved, seconds = result.outcomes, result.work, result.seconds
            self.metrics.device_seconds += seconds
            if self.pace is not None:
                note_pace(self.pace, self.metrics, flight, seconds)
        events = self._wiring.events
        events.detail(landed, flight.plan.number, seconds, outcomes if events.content else None)
        self.flights.popleft()
        if self.flights:
            self._launched.wake()
        for work, request, done in zip(flight.plan.work, flight.moving, moved, strict=True):
            if done.error is not None:
                events.detail(failed, work.slot, work.kind.value, done.error, work.position)
            end_work(self, request, work, done)
        hand_on(self, flight, outcomes, events)
        for slot in sorted(self.retiring):
            self._release_if_still(slot)

    # -- the end of a request -------------------------------------------------------------------------------------

    def _retire(self, request: Request) -> None:
        """A request has ended: take it off its queue, or free its slot as soon as no step holds a row of it."""
        for queue in (self.waiting, self.parked):
            if queue.pop(request.order, None) is not None:
                self.memory.end(request)
                request.mailbox.put(Plain("retired"))
                return
        if request.slot is None:
            request.mailbox.put(Plain("retired"))
            return
        self.retiring.add(request.slot)
        self.staged_pass = without(self.staged_pass, request.slot)
        if not (request.machine.active("ending_finished") and self.memory.finished(request)):
            self._release_if_still(request.slot)

    def _release_if_still(self, slot: int) -> None:
        request = self.running[slot]
        if any(slot in flight.slots for flight in self.flights) or self.memory.is_captured(slot):
            return
        self.retiring.discard(slot)
        self.saving.discard(slot)
        del self.running[slot]
        self.memory.end(request)
        request.mailbox.put(Plain("retired"))


def _masks(segments: tuple[Segment, ...], requests: tuple[Request, ...]) -> tuple[Mask | None, ...]:
    return tuple(
        [
            request.mask if segment.sample else None
            for segment, request in zip(segments, requests, strict=True)
        ]
    )
