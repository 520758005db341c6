"""What the actors do around their charts, on a thawed `World`. Mirrors luce/actors; every rule is checked on
the way.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from luce.actors.encoder import EncoderGuards
from luce.actors.request import RequestGuards
from luce.actors.step_loop import LoopGuards
from luce.charts.explorer import Violation
from luce.charts.interpreter import Configuration, advance, initial
from luce.charts.model import Chart, Send
from luce.errors import IllegalEvent
from luce.scheduling.blocks import blocks_for
from luce.scheduling.plan import plan
from luce.scheduling.state import Decision, Lane, Limits, LoopState, Waiting
from tests.model.world import Flight, Message, Request, Row, World

__all__ = ["Actors"]


class Actors:
    """One action's worth of actors."""

    def __init__(self, world: World, charts: dict[str, Chart], seen: set[Configuration]) -> None:
        self.world = world
        self.charts = charts
        self.seen = seen
        options = world.options
        self.planted = options.planted
        self.limits = Limits(options.slots, options.block_size, options.prefill_budget)

    def _feed(
        self, machine: str, here: Configuration, event: str, guards: object
    ) -> tuple[Configuration, tuple[Send, ...]]:
        def ask(name: str) -> bool:
            answer: bool = getattr(guards, name)()
            return answer

        outcome = advance(here, event, ask)
        if outcome.then is None:
            raise IllegalEvent(machine, here.states, event)
        self.seen.add(outcome.then)
        return outcome.then, outcome.sends

    # -- requests
    # -------------------------------------------------------------------------------------------------

    def submit(self, request: Request) -> None:
        images = len(request.shape.spans)
        request.order = self.world.submitted
        request.arrived = (False,) * images
        request.encoded = (0,) * images
        self.world.submitted += 1
        outcome = initial(self.charts["request"])
        assert outcome.then is not None
        request.here = outcome.then
        self.seen.add(outcome.then)
        self._request_sends(request, outcome.sends)

    def post(self, request: Request, *message: Any) -> None:
        """A message of loop or encoder to a request."""
        if request.final:
            raise Violation(f"{message[0]} is delivered to request {request.number}, which is final")
        request.mailbox += (message,)

    def request_handles(self, request: Request, *, fills: bool) -> None:
        message, request.mailbox = request.mailbox[0], request.mailbox[1:]
        assert request.here is not None
        if not request.active("ending"):
            self._take_in(request, message)
        if fills:
            self.world.stalls -= 1
            request.full = True
            request.mailbox += (("client.full",),)
        name = f"request {request.number}"
        request.here, sends = self._feed(name, request.here, message[0], RequestGuards(request))  # type: ignore[arg-type]
        self._request_sends(request, sends)
        if request.final:
            # The client's side may speak at any time; its last words are dropped with the mailbox.
            left = [m[0] for m in request.mailbox if m[0] not in ("cancel", "client.drained")]
            if left or request.timers:
                raise Violation(f"request {request.number} is final with {left or request.timers} left")
            request.mailbox = ()
            # Nothing reads these any more; without them equal ends are one state.
            request.arrived = request.encoded = ()
            request.next_row = request.computed_rows = request.num_generated = 0
            request.finish, request.slot, request.full, request.cancelled = None, None, False, False

    def _take_in(self, request: Request, message: Message) -> None:
        event = message[0]
        if event == "token":
            request.computed_rows += request.num_generated > 0
            request.num_generated += 1
            ends = message[1] or request.num_generated >= request.shape.max_tokens
            request.finish = True if ends else None
        elif event == "chunk.done":
            request.computed_rows += message[1]
        elif event == "slot.granted":
            request.slot = message[1]
        elif event == "image.ready":
            request.arrived = tuple(r or n == message[1] for n, r in enumerate(request.arrived))

    def _request_sends(self, request: Request, sends: tuple[Send, ...]) -> None:
        for send in sends:
            if send.target == "loop":
                self.world.loop.mailbox += ((send.event, request.number),)
            elif send.target == "encoder":
                self.world.encoder.mailbox += ((send.event, request.number),)
            else:
                assert send.target == "timer"
                armed = {send.event}
                request.timers = request.timers - armed if send.delay is None else request.timers | armed

    # -- the loop
    # -------------------------------------------------------------------------------------------------

    def loop_feeds(self, event: str, sender: int | None = None) -> None:
        world = self.world
        loop = world.loop
        loop.here, sends = self._feed("loop", loop.here, event, LoopGuards(loop))  # type: ignore[arg-type]
        for send in sends:
            if send.target == "timer":
                loop.window = send.delay is not None
                continue
            receivers: Collection[int] = loop.waiting
            if send.target == "requests":
                receivers = [*loop.waiting, *loop.running.values()]
            elif send.target == "request":
                assert sender is not None
                receivers = [sender]
            for number in receivers:
                self.post(world.requests[number], send.event)
        if loop.here.finished:
            world.encoder.mailbox += (("stop", None),)

    def loop_handles(self) -> None:
        loop = self.world.loop
        message, loop.mailbox = loop.mailbox[0], loop.mailbox[1:]
        event, number = message[0], message[1] if len(message) > 1 else None
        if event == "admit":
            loop.waiting += (number,)
        elif event == "retire":
            self._retire(self.world.requests[number])
        self.loop_feeds(event, number)

    def loop_plans(self) -> None:
        decision = plan(self._freeze(run_ahead=False))
        if decision.grants:
            for grant in decision.grants:
                self._grant(grant.key, grant.slot)
            return
        self._launch_or_not(decision)
        while "ahead" in self.world.loop.here.active:
            self._launch_or_not(plan(self._freeze(run_ahead=True)))

    def _freeze(self, *, run_ahead: bool) -> LoopState:
        world = self.world
        loop = world.loop
        owned = {slot: world.requests[n] for slot, n in loop.running.items() if slot not in loop.retiring}
        continuing = {row.slot for flight in loop.flights for row in flight if row.sample}
        free = tuple(slot for slot in range(self.limits.num_slots) if slot not in loop.running)
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
                for slot, request in owned.items()
            ),
            waiting=tuple(
                Waiting(n, blocks_for(world.requests[n].row_limit, self.limits.block_size))
                for n in loop.waiting[: len(free)]
            ),
            free_slots=free,
            available_blocks=world.options.blocks - sum(loop.reserved.values()),
            admitting="open" in loop.here.active,
            run_ahead=run_ahead,
        )

    def _grant(self, number: int, slot: int) -> None:
        loop = self.world.loop
        request = self.world.requests[number]
        if "closed" in loop.here.active:
            raise Violation(f"request {number} is granted a slot after the drain")
        if loop.waiting[0] != number:
            raise Violation(f"request {number} overtakes request {loop.waiting[0]}")
        loop.waiting = loop.waiting[1:]
        loop.running[slot] = number
        rows = request.prompt_rows if "no-growth" in self.planted else request.row_limit
        loop.reserved[slot] = blocks_for(rows, self.limits.block_size)
        loop.held[slot] = 0
        self.post(request, "slot.granted", slot)

    def _launch_or_not(self, decision: Decision) -> None:
        rows = []
        for segment in decision.segments:
            number = self.world.loop.running[segment.slot]
            request = self.world.requests[number]
            end = segment.start + segment.count
            prefill = segment.kind.value == "prefill"
            if request.active("ending"):
                raise Violation(f"a plan holds a row of request {number}, which has ended")
            if segment.start != request.next_row:
                raise Violation(
                    f"request {number}: a segment starts at {segment.start}, not {request.next_row}"
                )
            if (prefill and end > request.ready_rows) or (
                not prefill and segment.start < request.prompt_rows
            ):
                raise Violation(f"request {number}: rows up to {end} are not ready")
            request.next_row = end
            self._grow(segment.slot, end)
            rows.append(Row(number, segment.slot, prefill, segment.start, segment.count, segment.sample))
        if rows:
            self.world.loop.flights += (tuple(rows),)
        self.loop_feeds("plan.rows" if rows else "plan.empty")

    def _grow(self, slot: int, rows: int) -> None:
        loop = self.world.loop
        loop.held[slot] = max(loop.held[slot], blocks_for(rows, self.limits.block_size))
        if sum(loop.held.values()) > self.world.options.blocks:
            raise Violation(f"no block is left for slot {slot}")

    def hand_out(self, *, stops: Collection[int] = (), fails: bool = False) -> None:
        """The oldest step is done: the loop takes it up and hands out."""
        loop = self.world.loop
        self.loop_feeds("step.done")
        flight: Flight = loop.flights[0]
        loop.flights = loop.flights[1:]
        for row in flight:
            request = self.world.requests[row.request]
            if loop.running.get(row.slot) != row.request:
                raise Violation(
                    f"a step held rows of request {row.request} in slot {row.slot}, freed meanwhile"
                )
            if fails:
                self.post(request, "step.failed")
                continue
            if row.prefill:
                self.post(request, "chunk.done", row.count)
            if row.sample:
                self.post(request, "token", row.request in stops)
        for slot in sorted(loop.retiring):
            self._release_if_still(slot)

    def _retire(self, request: Request) -> None:
        loop = self.world.loop
        if request.number in loop.waiting:
            loop.waiting = tuple(n for n in loop.waiting if n != request.number)
            self.post(request, "retired")
            return
        for slot, number in loop.running.items():
            if number == request.number:
                loop.retiring |= {slot}
                self._release_if_still(slot)
                return
        self.post(request, "retired")

    def _release_if_still(self, slot: int) -> None:
        loop = self.world.loop
        number = loop.running[slot]
        in_flight = any(row.request == number for flight in loop.flights for row in flight)
        if in_flight and "early-free" not in self.planted:
            return
        loop.retiring -= {slot}
        del loop.running[slot]
        del loop.reserved[slot]
        if "block-leak" not in self.planted:
            del loop.held[slot]
        self.post(self.world.requests[number], "retired")

    # -- the encoder
    # ----------------------------------------------------------------------------------------------

    def image_ends(self, event: str) -> None:
        encoder = self.world.encoder
        assert encoder.running is not None
        encoder.answered = True
        encoder.mailbox += ((event, encoder.running[0]),)

    def encoder_handles(self) -> None:
        encoder = self.world.encoder
        message, encoder.mailbox = encoder.mailbox[0], encoder.mailbox[1:]
        event, number = message
        encoder.sending = number
        self._update_queue(event, number)
        ended = event in ("image.done", "image.failed")
        encoder.here, sends = self._feed("encoder", encoder.here, event, EncoderGuards(encoder))  # type: ignore[arg-type]
        for send in sends:
            if send.event == "dropped":
                self.post(self.world.requests[number], "dropped")
            else:
                assert encoder.running is not None
                owner, image = encoder.running
                self.post(self.world.requests[owner], send.event, image)
        if ended:
            encoder.running, encoder.answered = None, False
        if encoder.running is None and "encoding" in encoder.here.active:
            self._start_next()

    def _update_queue(self, event: str, number: int) -> None:
        encoder = self.world.encoder
        requests = self.world.requests
        if event == "encode":
            arrived = requests[number].arrived
            encoder.queue += tuple((number, image) for image, there in enumerate(arrived) if not there)
        if event in ("drop", "image.failed"):
            encoder.queue = tuple(job for job in encoder.queue if job[0] != number)
        if event != "drop" and "dead-encode" not in self.planted:
            encoder.queue = tuple(job for job in encoder.queue if not requests[job[0]].active("ending"))

    def _start_next(self) -> None:
        encoder = self.world.encoder
        if not encoder.queue:
            raise Violation("the encoder has nothing to start")
        number, image = encoder.queue[0]
        encoder.running, encoder.queue = (number, image), encoder.queue[1:]
        request = self.world.requests[number]
        if request.active("ending") or request.final:
            raise Violation(f"the encoder starts an image of request {number}, which has ended")
        if request.slot is None:
            raise Violation(f"the encoder starts an image of request {number}, which holds no slot")
        request.encoded = tuple(n + (i == image) for i, n in enumerate(request.encoded))
        if request.encoded[image] > 1:
            raise Violation(f"image {image} of request {number} is encoded twice")
