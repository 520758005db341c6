"""Mirrors the planning half of `luce.actors.step_loop`: freeze, decide, move requests or launch."""

from __future__ import annotations

from types import SimpleNamespace

import attrs

from luce.actors.freeze import freeze
from luce.charts.explorer import Violation
from luce.composition.loop_actor import LoopActor
from luce.composition.memory import Memory
from luce.composition.world import Flight, Request, Row, Work
from luce.engines.late_captures import may_be_late
from luce.engines.seam import WorkKind
from luce.scheduling.plan import plan
from luce.scheduling.staged_passes import pass_after
from luce.scheduling.state import Decision, LoopState, ParkKind

__all__ = ["Planning"]


class Planning(LoopActor):
    def plans(self, *, hit: bool = False) -> None:
        """``hit``: the first request that gets a slot, if one does, finds its prompt in the prefix cache."""
        decision = plan(self._freeze(run_ahead=False))
        if decision.moves:
            self._move(decision, hit)
            return
        self._launch_or_not(decision)
        while "ahead" in self.world.loop.here.active:
            self._launch_or_not(plan(self._freeze(run_ahead=True)))

    def early(self) -> Decision:
        """Who may be let in between two plans."""
        return plan(self._freeze(run_ahead=False, early=True))

    def lets_in(self, *, hit: bool = False) -> None:
        """``hit``: as for :meth:`plans`."""
        self._move(self.early(), hit)

    def _freeze(self, *, run_ahead: bool, early: bool = False) -> LoopState:
        """The real `freeze` on a loop that looks like the real one; its keys are request numbers."""
        world, loop = self.world, self.world.loop
        seen = SimpleNamespace(
            limits=world.options.limits,
            memory=Memory(world),
            running={slot: world.requests[n] for slot, n in loop.running.items()},
            waiting={n: world.requests[n] for n in loop.waiting},
            parked={world.requests[n].order: world.requests[n] for n in loop.parked},
            retiring=loop.retiring,
            saving=loop.saving,
            flights=loop.flights,
            staged_pass=loop.staged_pass,
            machine=SimpleNamespace(active=lambda state: state in loop.here.active),
            pace=None,
        )
        state = freeze(seen, run_ahead=run_ahead, early=early)  # type: ignore[arg-type]
        if "eager-park" in self.planted:
            lanes = tuple(lane._replace(busy=False) for lane in state.lanes)
            state = attrs.evolve(state, lanes=lanes)
        if "drop-images" in self.planted:
            lanes = tuple(
                lane._replace(can_drop=seen.running[lane.slot].active("decoding")) for lane in state.lanes
            )
            state = attrs.evolve(state, lanes=lanes)
        if "no-capture-wait" in self.planted:
            lanes = tuple(
                lane._replace(runnable=seen.running[lane.slot].runnable and not loop.adopting(lane.slot))
                for lane in state.lanes
            )
            state = attrs.evolve(state, lanes=lanes)
        if "early-adopted" in self.planted:
            lanes = tuple(lane._replace(runnable=seen.running[lane.slot].runnable) for lane in state.lanes)
            state = attrs.evolve(state, lanes=lanes)
        if "masked-ahead" in self.planted:
            lanes = tuple(lane._replace(masked=False) for lane in state.lanes)
            state = attrs.evolve(state, lanes=lanes)
        if "parks-masking" in self.planted:
            held = frozenset[int]().union(*[flight.slots for flight in loop.flights])
            lanes = tuple(lane._replace(busy=lane.slot in held) for lane in state.lanes)
            state = attrs.evolve(state, lanes=lanes)
        if "single" in self.planted and len(loop.running) == 1:
            state = attrs.evolve(state, waiting=())
        if "grants-closed" in self.planted:
            state = attrs.evolve(state, admitting=True)
        if "overtake-parked" in self.planted:
            state = attrs.evolve(state, parked=())
        return state

    def _by_order(self, order: int) -> Request:
        return next(request for request in self.world.requests if request.order == order)

    def _move(self, decision: Decision, hit: bool) -> None:
        for grant in decision.grants:
            self._grant(grant.key, grant.slot, hit and grant is decision.grants[0])
        for resume in decision.resumes:
            self._resume(self._by_order(resume.key), resume.slot, hit)
        for park in decision.parks:
            self._park(park.slot, saves=park.kind is ParkKind.SAVE)
        for slot in decision.fails:
            # Every request of a scenario fits into the pool alone, so somebody could have given way, or none was let
            # in who cannot (I12).
            raise Violation(f"request {self.world.loop.running[slot]} is given up")

    def _grant(self, number: int, slot: int, hit: bool) -> None:
        loop = self.world.loop
        request = self.world.requests[number]
        if "closed" in loop.here.active:
            raise Violation(f"request {number} is granted a slot after the drain")
        oldest = min(loop.waiting, key=self._order)
        if oldest != number:
            raise Violation(f"request {number} overtakes request {oldest}")
        if loop.parked:
            raise Violation(f"request {number} overtakes the parked request {min(loop.parked)}")
        loop.waiting = loop.waiting[1:]
        self.open(request, slot)
        self._start_at(request, slot, hit)
        self.post(request, "slot.granted")

    def _start_at(self, request: Request, slot: int, hit: bool) -> None:
        """From the beginning, or from a prefix that is copied into the slot."""
        if hit and request.prompt_rows > 1:
            self.world.hits -= 1
            request.start_at(request.prompt_rows - 1)
            self.grow(slot, request.computed_rows)
            self.add_work(Work(WorkKind.ADOPT, slot, request.number, request.computed_rows))

    def _park(self, slot: int, *, saves: bool) -> None:
        loop = self.world.loop
        number = loop.running[slot]
        request = self.world.requests[number]
        if any(slot in flight.slots for flight in loop.flights):
            raise Violation(f"request {number} is parked while a step holds rows of it")
        if request.active("staging_in_pass") or request.active("staging_importing"):
            raise Violation(f"request {number} is parked in a staged pass")
        if not saves and not request.recomputable:
            raise Violation(f"request {number} is dropped, and cannot be computed again")
        if saves:
            request.saved_rows = request.next_row
            loop.saving |= {slot}
            loop.reserved[slot] = 0
            self.add_work(Work(WorkKind.SAVE, slot, number, request.next_row))
        else:
            self.close(slot)
            loop.parked |= {number}
        self.post(request, "park.save" if saves else "park.drop")

    def _resume(self, request: Request, slot: int, hit: bool) -> None:
        loop = self.world.loop
        oldest = min(self.world.requests[n].order for n in loop.parked)
        if request.order != oldest:
            raise Violation(f"request {request.number} comes back before an older one")
        loop.parked -= {request.number}
        self.open(request, slot)
        if request.saved_rows is not None:
            self.grow(slot, request.saved_rows)
            self.add_work(Work(WorkKind.RESTORE, slot, request.number, request.saved_rows))
        else:
            self._start_at(request, slot, hit)
            self.post(request, "resume")

    def _launch_or_not(self, decision: Decision) -> None:
        loop = self.world.loop
        rows = []
        adopting = {slot for slot in loop.running if loop.adopting(slot)}
        work: tuple[Work, ...] = ()
        if "ahead" not in loop.here.active:
            work, loop.work = loop.work, ()
            for one in work:
                self._check_copy(one)
        for segment in decision.segments:
            if segment.slot not in loop.running:
                raise Violation(f"a plan holds a row of slot {segment.slot}, which nobody holds")
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
            staged = segment.layers is not None
            ready = request.ready_rows if prefill or staged else end
            if not (prefill or staged) and segment.start < request.prompt_rows and not request.imported:
                ready = 0
            if end > ready:
                raise Violation(f"request {number}: rows up to {end} are not ready")
            if segment.sample and request.masking:
                raise Violation(f"request {number}: a row is planned before its mask is there")
            if segment.slot in adopting:
                raise Violation(f"request {number}: a row is planned before its prefix is there")
            if segment.layers is None or segment.layers[1] == self.world.options.layers:
                request.next_row = end
                request.committed = segment.commits if request.capture_points else 0
            if segment.layers is None:
                self.grow(segment.slot, end)
            elif segment.layers[0] == 0:
                self.post(request, "pass.joined")
            rows.append(
                Row(
                    number,
                    segment.slot,
                    prefill,
                    segment.start,
                    segment.count,
                    segment.sample,
                    segment.layers,
                    segment.sample and request.mask is not None,
                )
            )
        loop.staged_pass = pass_after(loop.staged_pass, decision.segments, self.world.options.layers)
        if rows or work:
            loop.flights += (Flight(tuple(rows), work),)
        self.feeds("plan.rows" if rows or work else "plan.empty")

    def _check_copy(self, work: Work) -> None:
        """What is copied out of a slot must be there: its last segment's rows can be taken back, no others."""
        if work.kind not in (WorkKind.SAVE, WorkKind.CAPTURE):
            return
        request = self.world.requests[work.request]
        past = request.next_row - work.position
        if request.capture_points:
            late = work.kind is WorkKind.CAPTURE and may_be_late(
                work.position, request.committed, request.next_row
            )
            wrong = not (late or request.committed <= work.position <= request.next_row)
            request.committed = max(request.committed, work.position)
        else:
            wrong = past < 0 or past > (work.position >= request.prompt_rows)
        if wrong:
            raise Violation(f"request {request.number}: row {work.position} is copied after {past} more rows")
