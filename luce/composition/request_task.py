"""Mirrors `luce.actors.request`."""

from __future__ import annotations

from luce.actors.request_guards import RequestGuards
from luce.charts.explorer import Violation
from luce.charts.interpreter import Outcome, advance, initial
from luce.charts.model import Send
from luce.composition.actor import Actor
from luce.composition.world import Message, Request

__all__ = ["RequestTask"]


class RequestTask(Actor):
    def submit(self, request: Request) -> None:
        """Those that share its prompt come with it."""
        group = [request, *self._followers(request)]
        request.leads = len(group) > 1
        for one in group:
            self._enter(one)

    def _followers(self, request: Request) -> list[Request]:
        return [other for other in self.world.requests if other.shape.leader == request.number]

    def _enter(self, request: Request) -> None:
        images = len(request.shape.spans)
        request.order = self.world.submitted
        request.arrived = (False,) * images
        request.start_at(0)
        request.mask = request.shape.needs(0) == "r" or None
        self.world.submitted += 1
        guards = RequestGuards(request)  # type: ignore[arg-type]
        outcome = initial(self.charts["request"], lambda name: bool(getattr(guards, name)()))
        assert outcome.then is not None
        request.here = outcome.then
        self.seen.add(outcome.then)
        self._deliver(request, outcome.sends)

    def handles(self, request: Request, *, fills: bool) -> None:
        message, request.mailbox = request.mailbox[0], request.mailbox[1:]
        assert request.here is not None
        if not request.active("ending"):
            self._take_in(request, message)
        if fills:
            self.world.stalls -= 1
            request.full = True
            request.mailbox += (("client.full",),)
        name = f"request {request.number}"
        request.here, sends = self.feed(name, request.here, message[0], RequestGuards(request))  # type: ignore[arg-type]
        self._deliver(request, sends)
        if request.final:
            # The client's side, and a request that leads, may speak at any time; what they say last is dropped with the
            # mailbox.
            late = ("cancel", "client.drained", "lead.over")
            left = [m[0] for m in request.mailbox if m[0] not in late]
            if left or request.timers:
                raise Violation(f"request {request.number} is final with {left or request.timers} left")
            request.mailbox = ()
            # Nothing reads these any more; without them equal ends are one state.
            request.arrived = ()
            request.next_row = request.computed_rows = request.num_generated = request.folded = 0
            request.committed = 0
            request.finish, request.slot, request.full, request.cancelled = None, None, False, False
            request.staged = request.layers_left = request.imported = request.leads = request.masking = False
            request.mask = None
            if request.computing:
                raise Violation(f"request {request.number} is final and a worker still computes its mask")

    def outcome(self, request: Request) -> Outcome:
        """What its next message does to its chart. Takes the message in: for a copy."""
        message = request.mailbox[0]
        assert request.here is not None
        if not request.active("ending"):
            self._take_in(request, message)
        guards = RequestGuards(request)  # type: ignore[arg-type]
        return advance(request.here, message[0], lambda name: getattr(guards, name)())

    def _take_in(self, request: Request, message: Message) -> None:
        event = message[0]
        if event == "token":
            needed = request.shape.needs(request.num_generated) != "f"
            if message[3] != needed:
                raise Violation(
                    f"request {request.number}: a token is sampled {'with' if message[3] else 'without'} a mask"
                )
            request.computed_rows += message[2]
            request.num_generated += 1
            ends = message[1] or request.num_generated >= request.shape.max_tokens
            request.finish = True if ends else None
            needs = request.shape.needs(request.num_generated)
            if not ends:
                request.mask, request.masking = needs == "r" or None, needs == "c"
        elif event == "mask.ready":
            request.mask, request.masking = True, False
        elif event == "mask.failed":
            request.masking = False
        elif event == "chunk.done":
            request.computed_rows += message[1]
        elif event == "slice.done":
            request.computed_rows += message[1]
            request.layers_left = message[2]
        elif event in ("park.drop", "adoption.failed") or (
            event == "restore.failed" and request.recomputable
        ):
            request.folded = request.num_generated
            request.start_at(0)
        elif event == "image.ready":
            request.arrived = tuple(r or n == message[1] for n, r in enumerate(request.arrived))

    def _deliver(self, request: Request, sends: tuple[Send, ...]) -> None:
        for send in sends:
            if send.target == "loop":
                self.world.loop.mailbox += ((send.event, request.number),)
            elif send.target == "masks":
                if request.computing:
                    raise Violation(f"request {request.number}: a second worker computes on its form")
                request.computing = True
            elif send.target == "encoder":
                self.world.encoder.mailbox += ((send.event, request.number),)
            elif send.target == "followers":
                told = self._followers(request) if request.leads and "no-lead" not in self.planted else ()
                request.leads = False
                for follower in told:
                    if not follower.final:  # else its mailbox is closed
                        follower.mailbox += ((send.event,),)
            else:
                assert send.target == "timer"
                options = self.world.options
                limited = request.number >= len(options.shapes) - options.deadlines
                if send.event == "deadline.expired" and not limited:
                    continue
                if send.delay is None and "keeps-timers" in self.planted:
                    continue
                armed = {send.event}
                request.timers = request.timers - armed if send.delay is None else request.timers | armed
