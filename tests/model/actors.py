"""What the actors do around their charts, on a thawed `World`. Mirrors luce/actors; every rule is checked on
the way.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from types import SimpleNamespace
from typing import Any

import attrs

from luce.actors.encoder import EncoderGuards
from luce.actors.freeze import freeze
from luce.actors.request import RequestGuards
from luce.actors.slot_memory import SlotMemory
from luce.actors.step_loop import LoopGuards
from luce.charts.explorer import Violation
from luce.charts.interpreter import Configuration, advance, initial
from luce.charts.model import Chart, Send
from luce.errors import IllegalEvent
from luce.scheduling.block_pool import blocks_for
from luce.scheduling.image_cache import Asked, ImageCache
from luce.scheduling.plan import plan
from luce.scheduling.state import Decision, Limits, LoopState, ParkKind
from tests.model.pictures import freeze_cache, thaw_cache
from tests.model.world import Flight, Message, Request, Row, Work, World

__all__ = ["Actors"]


class Memory:
    """What `freeze` asks of `luce.actors.slot_memory.SlotMemory`, counted by slot."""

    def __init__(self, world: World, limits: Limits) -> None:
        self._world = world
        self._loop = world.loop
        self.capabilities = SimpleNamespace(block_size=limits.block_size)
        self.free_slots = tuple(slot for slot in range(limits.num_slots) if slot not in world.loop.running)
        self.work = tuple((work, work.request) for work in world.loop.work)
        taken = sum(map(self._taken, world.loop.running))
        self.pool = SimpleNamespace(available=world.options.blocks - taken)

    def _taken(self, slot: int) -> int:
        return max(self._loop.held[slot], self._loop.reserved[slot])

    def returning_blocks(self, ending: Iterable[Request]) -> int:
        slots = [request.slot for request in ending if request.slot is not None]
        return sum(map(self._taken, [*slots, *self._loop.saving]))

    def covered_rows(self, request: Request) -> int:
        assert request.slot is not None
        return self._taken(request.slot) * self.capabilities.block_size

    cache = SimpleNamespace(adopting=lambda slot: False)

    def entry_cost(self, request: Request) -> int:
        return self.entry_blocks(request)

    def entry_blocks(self, request: Request) -> int:
        return SlotMemory.entry_blocks(self, request)  # type: ignore[arg-type]

    def room_to_save(self) -> int:
        return self._world.options.saves - sum(r.saved_rows or 0 for r in self._world.requests)

    def save_cost(self, request: Request) -> int:
        return request.next_row


class Actors:
    """One action's worth of actors."""

    def __init__(self, world: World, charts: dict[str, Chart], seen: set[Configuration]) -> None:
        self.world = world
        self.charts = charts
        self.seen = seen
        options = world.options
        self.planted = options.planted
        self.limits = Limits(options.slots, options.block_size, options.prefill_budget)
        self.hit = False
        """Does this plan's returning request find its prompt in the prefix cache?"""

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
            request.arrived = ()
            request.next_row = request.computed_rows = request.num_generated = request.folded = 0
            request.finish, request.slot, request.full, request.cancelled = None, None, False, False

    def _take_in(self, request: Request, message: Message) -> None:
        event = message[0]
        if event == "token":
            request.computed_rows += message[2]
            request.num_generated += 1
            ends = message[1] or request.num_generated >= request.shape.max_tokens
            request.finish = True if ends else None
        elif event == "chunk.done":
            request.computed_rows += message[1]
        elif event == "park.drop" or (event == "restore.failed" and request.recomputable):
            request.folded = request.num_generated
            request.next_row = request.computed_rows = 0
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
                receivers = [*loop.waiting, *sorted(loop.parked), *loop.running.values()]
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

    def loop_plans(self, *, hit: bool = False) -> None:
        self.hit = hit
        decision = plan(self._freeze(run_ahead=False))
        if decision.moves:
            self._move(decision)
            return
        self._launch_or_not(decision)
        while "ahead" in self.world.loop.here.active:
            self._launch_or_not(plan(self._freeze(run_ahead=True)))

    def _freeze(self, *, run_ahead: bool) -> LoopState:
        """The real `freeze` on a loop that looks like the real one; its keys are request numbers."""
        world, loop = self.world, self.world.loop
        seen = SimpleNamespace(
            limits=self.limits,
            memory=Memory(world, self.limits),
            running={slot: world.requests[n] for slot, n in loop.running.items()},
            waiting={n: world.requests[n] for n in loop.waiting},
            parked={world.requests[n].order: world.requests[n] for n in loop.parked},
            retiring=loop.retiring,
            saving=loop.saving,
            flights=loop.flights,
            machine=SimpleNamespace(active=lambda state: state in loop.here.active),
        )
        state = freeze(seen, run_ahead=run_ahead)  # type: ignore[arg-type]
        if "eager-park" in self.planted:
            lanes = tuple(lane._replace(busy=False) for lane in state.lanes)
            state = attrs.evolve(state, lanes=lanes)
        if "drop-images" in self.planted:
            lanes = tuple(
                lane._replace(can_drop=seen.running[lane.slot].active("decoding")) for lane in state.lanes
            )
            state = attrs.evolve(state, lanes=lanes)
        if "overtake-parked" in self.planted:
            state = attrs.evolve(state, parked=())
        return state

    def _by_order(self, order: int) -> Request:
        return next(request for request in self.world.requests if request.order == order)

    def _move(self, decision: Decision) -> None:
        for grant in decision.grants:
            self._grant(grant.key, grant.slot)
        for resume in decision.resumes:
            self._resume(self._by_order(resume.key), resume.slot)
        for park in decision.parks:
            self._park(park.slot, saves=park.kind is ParkKind.SAVE)
        for slot in decision.fails:
            self.post(self.world.requests[self.world.loop.running[slot]], "step.failed")

    def _open(self, request: Request, slot: int) -> None:
        loop = self.world.loop
        entry = Memory(self.world, self.limits).entry_blocks(request)
        loop.running[slot] = request.number
        loop.held[slot] = 0
        loop.reserved[slot] = 0 if "no-growth" in self.planted else entry
        request.slot = slot

    def _close(self, slot: int) -> None:
        loop = self.world.loop
        self.world.requests[loop.running[slot]].slot = None
        del loop.running[slot]
        del loop.reserved[slot]
        if "block-leak" not in self.planted:
            del loop.held[slot]

    def _grant(self, number: int, slot: int) -> None:
        loop = self.world.loop
        request = self.world.requests[number]
        if "closed" in loop.here.active:
            raise Violation(f"request {number} is granted a slot after the drain")
        if loop.waiting[0] != number:
            raise Violation(f"request {number} overtakes request {loop.waiting[0]}")
        if loop.parked:
            raise Violation(f"request {number} overtakes the parked request {min(loop.parked)}")
        loop.waiting = loop.waiting[1:]
        self._open(request, slot)
        self.post(request, "slot.granted")

    def _park(self, slot: int, *, saves: bool) -> None:
        loop = self.world.loop
        number = loop.running[slot]
        request = self.world.requests[number]
        if any(slot in flight.slots for flight in loop.flights):
            raise Violation(f"request {number} is parked while a step holds rows of it")
        if not saves and not request.recomputable:
            raise Violation(f"request {number} is dropped, and cannot be computed again")
        if saves:
            request.saved_rows = request.next_row
            loop.saving |= {slot}
            loop.reserved[slot] = 0
            loop.work += (Work(True, slot, number),)
        else:
            self._close(slot)
            loop.parked |= {number}
        self.post(request, "park.save" if saves else "park.drop")

    def _resume(self, request: Request, slot: int) -> None:
        loop = self.world.loop
        oldest = min(self.world.requests[n].order for n in loop.parked)
        if request.order != oldest:
            raise Violation(f"request {request.number} comes back before an older one")
        loop.parked -= {request.number}
        self._open(request, slot)
        if request.saved_rows is not None:
            self._grow(slot, request.saved_rows)
            loop.work += (Work(False, slot, request.number),)
        else:
            if self.hit:  # the copy into the slot is left out: it does nothing to what is looked at here
                self.world.hits -= 1
                request.next_row = request.computed_rows = request.prompt_rows - 1
                self._grow(slot, request.computed_rows)
            self.post(request, "resume")

    def _launch_or_not(self, decision: Decision) -> None:
        loop = self.world.loop
        rows = []
        for segment in decision.segments:
            number = loop.running[segment.slot]
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
        work: tuple[Work, ...] = ()
        if "ahead" not in loop.here.active:
            work, loop.work = loop.work, ()
        if rows or work:
            loop.flights += (Flight(tuple(rows), work),)
        self.loop_feeds("plan.rows" if rows or work else "plan.empty")

    def _grow(self, slot: int, rows: int) -> None:
        loop = self.world.loop
        loop.held[slot] = max(loop.held[slot], blocks_for(rows, self.limits.block_size))
        if sum(loop.held.values()) > self.world.options.blocks:
            raise Violation(f"no block is left for slot {slot}")

    def hand_out(
        self, *, stops: Collection[int] = (), fails: bool = False, copies_fail: bool = False
    ) -> None:
        """The oldest step is done: the loop takes it up and hands out."""
        loop = self.world.loop
        self.loop_feeds("step.done")
        flight = loop.flights[0]
        loop.flights = loop.flights[1:]
        for work in flight.work:
            self._end_work(work, fails or copies_fail)
        for row in flight.rows:
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
                self.post(request, "token", row.request in stops, 0 if row.prefill else row.count)
        for slot in sorted(loop.retiring):
            self._release_if_still(slot)

    def _end_work(self, work: Work, failed: bool) -> None:
        loop = self.world.loop
        request = self.world.requests[work.request]
        loop.saving -= {work.slot}
        if failed or not work.saves:
            request.saved_rows = None
        if work.saves or failed:
            self._close(work.slot)
            if work.slot in loop.retiring:
                loop.retiring -= {work.slot}
                request.saved_rows = None
                self.post(request, "retired")
                return
            loop.parked |= {work.request}
        if failed:
            self.post(request, "restore.failed")
        elif not work.saves and work.slot not in loop.retiring:
            self.post(request, "resume")

    def _retire(self, request: Request) -> None:
        loop = self.world.loop
        if request.number in loop.waiting or request.number in loop.parked:
            loop.waiting = tuple(n for n in loop.waiting if n != request.number)
            loop.parked -= {request.number}
            request.saved_rows = None
            self.post(request, "retired")
        elif request.slot is None:
            self.post(request, "retired")
        else:
            loop.retiring |= {request.slot}
            self._release_if_still(request.slot)

    def _release_if_still(self, slot: int) -> None:
        loop = self.world.loop
        request = self.world.requests[loop.running[slot]]
        in_flight = any(slot in flight.slots for flight in loop.flights)
        if in_flight and "early-free" not in self.planted:
            return
        loop.retiring -= {slot}
        loop.saving -= {slot}
        loop.work = tuple(work for work in loop.work if work.slot != slot)
        self._close(slot)
        request.saved_rows = None
        self.post(request, "retired")

    # -- the encoder
    # ----------------------------------------------------------------------------------------------

    def image_ends(self, event: str) -> None:
        encoder = self.world.encoder
        assert encoder.encoding is not None
        encoder.answered = True
        encoder.mailbox += ((event, None),)

    def encoder_handles(self) -> None:
        encoder = self.world.encoder
        place = self.world.next_for_encoder()
        message = encoder.mailbox[place]
        encoder.mailbox = encoder.mailbox[:place] + encoder.mailbox[place + 1 :]
        event, number = message
        encoder.thawed = thaw_cache(encoder.pictures, self.world.options.kept_images)
        answers = self._update_cache(event, number)
        if "dead-encode" not in self.planted:
            self._leave_dead_work(encoder.cache)
        encoder.here, sends = self._feed("encoder", encoder.here, event, EncoderGuards(encoder))  # type: ignore[arg-type]
        if answers and not sends:
            raise Violation(f"the encoder's {answers[0][1]} is sent by no transition for {event}")
        for receiver, answer, *carried in answers:
            assert {send.event for send in sends} == {answer}
            self.post(self.world.requests[receiver], answer, *carried)
        if encoder.encoding is None and "encoding" in encoder.here.active:
            self._start_next(encoder.cache)
        encoder.cache.check_integrity()
        encoder.pictures = freeze_cache(encoder.cache)

    def _update_cache(self, event: str, number: int) -> list[tuple[Any, ...]]:
        """What is said to whom; the chart says when."""
        encoder, requests = self.world.encoder, self.world.requests
        cache = encoder.cache
        answers: list[tuple[Any, ...]] = []
        if event == "encode":
            request = requests[number]
            dead = request.active("ending") and "dead-encode" not in self.planted
            for image in [] if dead else request.missing_images:
                digest = request.digest(image)
                if not cache.holds(digest, number) and cache.ask(digest, number) is Asked.READY:
                    answers += self._ready(number, digest)
        elif event == "drop":
            for digest in cache.queue if "take-along" in self.planted else ():
                if cache.holds(digest, number):
                    for holder in cache.waiting(digest):
                        cache.release(digest, holder)
            cache.leave(number)
            answers = [(number, "dropped")]
        elif event in ("image.done", "image.failed"):
            digest = encoder.encoding
            assert digest is not None
            encoder.encoding, encoder.answered = None, False
            if event == "image.done":
                waiting = cache.encoded(digest, digest, 1).waiting
                for holder in waiting[:1] if "first-only" in self.planted else waiting:
                    answers += self._ready(holder, digest)
            else:
                for holder in cache.failed(digest):
                    cache.leave(holder)
                    answers.append((holder, "encode.failed", requests[holder].pictures(digest)[0]))
        return answers

    def _ready(self, number: Any, digest: bytes) -> list[tuple[Any, ...]]:
        return [(number, "image.ready", image) for image in self.world.requests[number].pictures(digest)]

    def _leave_dead_work(self, cache: ImageCache) -> None:
        while cache.more:
            waiting: tuple[Any, ...] = cache.waiting(cache.queue[0])
            if not all(self.world.requests[number].active("ending") for number in waiting):
                return
            for number in waiting:
                cache.leave(number)

    def _start_next(self, cache: ImageCache) -> None:
        encoder = self.world.encoder
        digest = cache.next_encode()
        if digest is None:
            raise Violation("the encoder has nothing to start")
        encoder.encoding = digest
        waiting: list[Request] = [self.world.requests[number] for number in cache.waiting(digest)]  # type: ignore[call-overload]
        alive = [request for request in waiting if not request.active("ending") and not request.final]
        if not alive:
            dead = ", ".join(str(request.number) for request in waiting)
            raise Violation(f"the encoder starts a picture of request {dead}, which has ended")
        if not any(r.slot is not None or r.active("parked_dropped") for r in alive):
            raise Violation(f"the encoder starts a picture of request {alive[0].number}, which holds no slot")
        for request in self.world.requests:
            if request.here is None or request.final or request.active("ending"):
                continue
            if any(message[0] == "encode.failed" for message in request.mailbox):
                continue  # it ends, and has left the cache for that
            if any(request.arrived[image] for image in request.pictures(digest)):
                raise Violation(f"a picture that request {request.number} has rows of is encoded again")
