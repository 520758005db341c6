"""Requests, the step loop and the encoder, composed: every interleaving of every choice.

Charts, guard classes and `plan()` are the real ones. An action is one thing that one actor does without
waiting, or one thing that the world does: a client that comes, goes, stops reading or reads on; a step or an
image that is done or fails; a timer that fires; a stop signal.

Planted defects, each of which the exploration must find:
    no-turns        the loop plans although messages are under way
    dead-encode     the encoder starts images of requests that have ended
    early-free      slot and blocks are freed while a step in flight holds rows of them
    block-leak      a freed slot keeps its blocks
    no-growth       admission promises no blocks
    eager-park      a request is parked although a step in flight holds rows of it
    drop-images     a request is dropped that cannot be computed again
    take-along      a request that is dropped takes its queued pictures away from others that wait for them
    first-only      rows of a picture go to the first request that asked, and not to the others
    overtake-parked slots are granted while somebody is parked
    early-adopted   rows of a request are planned before the prefix that it starts from is in its slot
    short-promise   one that cannot be computed again is promised no more than others
    single          nobody is let in while a request has the engine to itself
    keeps-timers    a timer goes on when its state is left
    deaf-encoder    a drop is not answered while a picture is being encoded
    echoes          a chunk is reported twice, once with no rows
    grants-closed   the policy is told that the server still admits
    no-capture-wait the next chunk does not wait for a copy that is to be made before it
    late-place      a choice that has waited for another one's prompt is put behind those that came after it
    no-lead         a request that computes a prompt for others never tells them
    stay-in-pass    rows of a request that has ended stay in the pass
Defects of a chart are planted by `Options.charts`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import combinations
from typing import Any

from luce.charts.explorer import Violation
from luce.charts.interpreter import Configuration, initial
from luce.charts.loader import load_chart
from luce.charts.model import Chart
from luce.composition.encoder_actor import EncoderActor
from luce.composition.loop_actor import LoopActor
from luce.composition.options import Options
from luce.composition.pictures import is_empty
from luce.composition.planning import Planning
from luce.composition.reduction import alone
from luce.composition.request_task import RequestTask
from luce.composition.results import Results
from luce.composition.world import Encoder, Loop, Request, World, quiet

__all__ = ["System"]

State = tuple[Any, ...]


@cache
def _steps_in(loop: Configuration) -> int:
    """How many steps are in flight while the loop is there."""
    steps = {"in_flight_one": 1, "in_flight_two": 2, "turn_beside": 1, "planning_beside": 1}
    return next((count for state, count in steps.items() if state in loop.active), 0)


@cache
def _words(action: str) -> tuple[str, ...]:
    return tuple(action.split())


class System:
    """`luce.charts.explorer.Model` of one `Options`."""

    def __init__(self, options: Options) -> None:
        self.options = options
        given: dict[str, Chart] = dict(options.charts)
        self.charts = {name: given.get(name) or load_chart(name) for name in ("request", "loop", "encoder")}
        self.seen: set[Configuration] = set()
        self.longest_mailbox = 0
        self._thawed: tuple[State | None, World] = None, self._begin()

    def start(self) -> State:
        return self._begin().freeze()

    def _begin(self) -> World:
        options = self.options
        loop, encoder = (initial(self.charts[name]).then for name in ("loop", "encoder"))
        assert loop is not None
        assert encoder is not None
        self.seen |= {loop, encoder}
        return World(
            options,
            [
                Request(number, shape, rows_before_picture=options.rows_before_picture)
                for number, shape in enumerate(options.shapes)
            ],
            Loop(options.depth, loop),
            Encoder(encoder),
            options.stalls,
            options.step_failures,
            options.image_failures,
            options.mask_failures,
            options.hits,
            options.copy_failures,
            options.drains,
        )

    def done(self, state: State) -> bool:
        """Every request that came is final, everything is given back, and nothing is under way."""
        if not quiet(state):
            return False
        world = World.thaw(self.options, state)
        loop, encoder = world.loop, world.encoder
        at_work = loop.running or loop.held or loop.waiting or loop.parked or loop.flights or loop.work
        held = bool(at_work or encoder.encoding or not is_empty(encoder.pictures))
        return not held and all(r.final or r.here is None for r in world.requests)

    def stopped(self, state: State) -> bool:
        """The loop and the encoder have ended."""
        world = World.thaw(self.options, state)
        return world.loop.here.finished and world.encoder.here.finished

    def draining(self, state: State) -> bool:
        """A stop signal was given."""
        return World.thaw(self.options, state).drains < self.options.drains

    def where(self, state: State) -> Iterator[tuple[str, Configuration]]:
        """Every machine that runs, and where it is."""
        world = World.thaw(self.options, state)
        for request in world.requests:
            if request.here is not None:
                yield f"request {request.number}", request.here
        yield "loop", world.loop.here
        yield "encoder", world.encoder.here

    def cancel_all(self, state: State) -> State:
        """Every client that is still there goes away at once, also where `Options` allows no cancel."""
        world = World.thaw(self.options, state)
        for request in world.requests:
            if request.here is not None and not request.final:
                request.mailbox += (("cancel",),)
        return world.freeze()

    def settle(self, state: State) -> tuple[State, int]:
        """Lets actors, device and worker go on, in a fixed order, until nothing moves without a client."""
        for steps in range(1000):
            action = next(filter(self.goes_on, self.actions(state)), None)
            if action is None:
                return state, steps
            state = self.apply(state, action)
        raise Violation("no rest after 1000 actions")

    @staticmethod
    def goes_on(action: str) -> bool:
        """Is this something that happens without a client, a time limit or the operator?"""
        return not action.startswith(("client", "timer", "server")) or action.startswith("timer of")

    # -- what may happen
    # ------------------------------------------------------------------------------------------

    def actions(self, state: State) -> list[str]:
        world = World.thaw(self.options, state)
        labels = list(self._actions(world))
        # Most states have few actions: the first one need not thaw its world once more.
        self._thawed = state, world
        return labels

    def _actions(self, world: World) -> Iterator[str]:
        only = alone(world, self.charts, self.seen) if self.options.reduced else None
        if only is not None:
            yield from self._deliveries(world, only)
            return
        for request in world.requests:
            yield from self._client_actions(world, request)
            yield from self._deliveries(world, request.number)
        yield from self._deliveries(world, "loop")
        yield from self._loop_actions(world)
        yield from self._deliveries(world, "encoder")
        for request in world.requests:
            if request.computing:
                yield f"masks of {request.number} ready"
                if world.mask_failures:
                    yield f"masks of {request.number} failed"
        encoder = world.encoder
        if encoder.encoding is not None and not encoder.answered:
            yield "worker: image.done"
            if world.image_failures:
                yield "worker: image.failed"

    def _deliveries(self, world: World, to: int | str) -> Iterator[str]:
        """The next message of a request (its number), the loop or the encoder is handled, one way or the other."""
        loop, encoder = world.loop, world.encoder
        if to == "loop":
            if loop.mailbox and not loop.here.finished:
                yield f"loop handles {loop.mailbox[0][0]}"
        elif to == "encoder":
            if encoder.mailbox:
                yield f"encoder handles {encoder.mailbox[world.next_for_encoder()][0]}"
        else:
            request = world.requests[int(to)]
            if request.mailbox:
                event = request.mailbox[0][0]
                yield f"request {to} handles {event}"
                may_stall = world.stalls and not request.full and not request.active("ending")
                if event == "token" and may_stall:
                    yield f"request {to} handles token and its buffer is full"

    def _client_actions(self, world: World, request: Request) -> Iterator[str]:
        options = self.options
        name = f"client {request.number}"
        if request.here is None:
            if request.follows:
                return  # it comes with the one that leads
            if world.drains == options.drains or (options.late_submits and not world.loop.here.finished):
                yield f"{name} submits"
            return
        if request.final:
            return
        may_cancel = request.number >= len(options.shapes) - options.cancels
        if may_cancel and not request.cancelled:
            yield f"{name} cancels"
        if request.full:
            yield f"{name} reads on"
        for event in sorted(request.timers):
            if options.fires(event):
                yield f"timer {request.number} fires {event}"

    def _loop_actions(self, world: World) -> Iterator[str]:
        loop = world.loop
        if loop.here.finished:
            return
        active = loop.here.active
        quiet = world.quiet or "no-turns" in self.options.planted
        if "planning" in active and quiet:
            yield "loop plans"
            dropped = any(world.requests[n].active("parked_dropped") for n in loop.parked)
            if world.hits and (dropped or (loop.waiting and not loop.parked)):
                yield "loop plans and finds a prefix"
        if quiet and self._lets_in(world):
            yield "loop lets in"
            if world.hits:
                yield "loop lets in and finds a prefix"
        if "turn" in active and quiet:
            yield "loop ends the turn"
        if "in_flight" in active:
            sampled = [row.request for row in loop.flights[0].rows if row.sample]
            for count in range(len(sampled) + 1):
                for stops in combinations(sampled, count):
                    ends = f", last token of {' '.join(map(str, stops))}" if stops else ""
                    yield f"device: step done{ends}"
            if world.step_failures:
                yield "device: step failed"
            if world.copy_failures and loop.flights[0].work:
                yield "device: copies failed"
        if loop.window:
            yield "timer of the loop fires"
        if world.drains and world.submitted:
            yield "server drains" if world.drains == self.options.drains else "server aborts"

    def _lets_in(self, world: World) -> bool:
        """Would somebody be let in between two plans?"""
        loop = world.loop
        shown = any(world.requests[number].missing_images for number in loop.waiting)
        return loop.between and shown and bool(Planning(world, self.charts, self.seen).early().grants)

    # -- what it does
    # ---------------------------------------------------------------------------------------------

    def apply(self, state: State, action: str) -> State:
        thawed, world = self._thawed
        if thawed is not state:
            world = World.thaw(self.options, state)
        self._thawed = None, world
        actors = world, self.charts, self.seen
        words = _words(action)
        match words:
            case ["request", number, *_]:
                RequestTask(*actors).handles(world.requests[int(number)], fills=action.endswith("is full"))
            case ["loop", "handles", _]:
                LoopActor(*actors).handles()
            case ["client", number, what, *_]:
                self._client(world, world.requests[int(number)], what)
            case ["timer", "of", *_]:
                world.loop.window = False
                world.loop.mailbox += (("window.elapsed",),)
            case ["timer", number, _, event]:
                request = world.requests[int(number)]
                request.timers -= {event}
                request.mailbox += ((event,),)
            case ["loop", "plans", *found]:
                Planning(*actors).plans(hit=bool(found))
            case ["loop", "lets", "in", *found]:
                Planning(*actors).lets_in(hit=bool(found))
            case ["loop", "ends", *_]:
                LoopActor(*actors).feeds("turn.done")
            case ["device:", "step", "failed"]:
                world.step_failures -= 1
                Results(*actors).hand_out(fails=True)
            case ["device:", "copies", "failed"]:
                world.copy_failures -= 1
                Results(*actors).hand_out(copies_fail=True)
            case ["device:", "step", _, *stops]:
                Results(*actors).hand_out(stops=[int(word) for word in stops if word.isdigit()])
            case ["server", what]:
                world.drains -= 1
                world.loop.mailbox += (("drain" if what == "drains" else "abort",),)
            case ["masks", "of", number, what]:
                request = world.requests[int(number)]
                request.computing = False
                world.mask_failures -= what == "failed"
                RequestTask(*actors).post(request, f"mask.{what}")
            case ["worker:", event]:
                world.image_failures -= event == "image.failed"
                EncoderActor(*actors).image_ends(event)
            case ["encoder", *_]:
                EncoderActor(*actors).handles()
            case _:
                raise AssertionError(action)
        self._check(world)
        return world.freeze()

    def _client(self, world: World, request: Request, what: str) -> None:
        if what == "submits":
            RequestTask(world, self.charts, self.seen).submit(request)
        elif what == "cancels":
            request.cancelled = True
            request.mailbox += (("cancel",),)
        else:
            request.full = False
            request.mailbox += (("client.drained",),)

    # -- what must hold always
    # ------------------------------------------------------------------------------------

    def _check(self, world: World) -> None:
        options, loop, encoder = self.options, world.loop, world.encoder
        if not loop.held.keys() == loop.running.keys() == loop.reserved.keys():
            raise Violation(
                f"blocks are held by {sorted(loop.held)}, slots in use are {sorted(loop.running)}"
            )
        if len(loop.running) > options.slots or sum(loop.held.values()) > options.blocks:
            raise Violation("more slots or blocks are in use than there are")
        for request in world.requests:
            number, here = request.number, request.here
            if len(request.mailbox) > self.longest_mailbox:
                length = len(request.mailbox) - len(request.shape.spans)
                self.longest_mailbox = max(self.longest_mailbox, length)
            if (
                here is not None
                and here.finished
                and (
                    number in loop.running.values()
                    or number in loop.waiting
                    or number in loop.parked
                    or any(number in holders for _, _, holders in encoder.pictures[0])
                    or request.saved_rows is not None
                )
            ):
                raise Violation(f"request {number} is final and still holds a slot, a place or a picture")
            if request.slot is not None and loop.running.get(request.slot) != number:
                raise Violation(f"request {number} believes to hold slot {request.slot}")
        if not loop.here.finished:
            expected = _steps_in(loop.here)
            if len(loop.flights) != expected:
                raise Violation(
                    f"{len(loop.flights)} steps in flight while the loop is in {loop.here.states}"
                )
