"""Mirrors `luce.actors.step_loop`: the mailbox, and who holds which slot and how many blocks. Plans are in
`planning.py`, results in `results.py`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from luce.actors.step_loop import LoopGuards
from luce.charts.explorer import Violation
from luce.composition.actor import Actor
from luce.composition.memory import Memory
from luce.composition.world import Request, Work
from luce.engines.seam import WorkKind
from luce.scheduling.block_pool import blocks_for
from luce.scheduling.staged_passes import without

__all__ = ["LoopActor"]


class LoopActor(Actor):
    def handles(self) -> None:
        loop = self.world.loop
        message, loop.mailbox = loop.mailbox[0], loop.mailbox[1:]
        event: str = message[0]
        number: Any = message[1] if len(message) > 1 else None
        if event == "admit":
            loop.waiting += (number,)
            if "late-place" not in self.planted:
                loop.waiting = tuple(sorted(loop.waiting, key=self._order))
        elif event == "retire":
            self._retire(self.world.requests[number])
        self.feeds(event, number)

    def feeds(self, event: str, sender: int | None = None) -> None:
        world = self.world
        loop = world.loop
        loop.here, sends = self.feed("loop", loop.here, event, LoopGuards(loop))  # type: ignore[arg-type]
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

    def _order(self, number: int) -> int:
        return self.world.requests[number].order

    # -- slots and blocks

    def open(self, request: Request, slot: int) -> None:
        loop = self.world.loop
        entry = Memory(self.world).entry_blocks(request)
        loop.running[slot] = request.number
        loop.held[slot] = 0
        loop.reserved[slot] = 0 if "no-growth" in self.planted else entry
        request.slot = slot

    def close(self, slot: int) -> None:
        loop = self.world.loop
        self.world.requests[loop.running[slot]].slot = None
        del loop.running[slot]
        del loop.reserved[slot]
        if "block-leak" not in self.planted:
            del loop.held[slot]

    def grow(self, slot: int, rows: int) -> None:
        loop = self.world.loop
        loop.held[slot] = max(loop.held[slot], blocks_for(rows, self.world.options.block_size))
        if sum(loop.held.values()) > self.world.options.blocks:
            raise Violation(f"no block is left for slot {slot}")

    def add_work(self, work: Work) -> None:
        """For the next step. Slots in order: who asked first makes no difference to what is copied."""
        loop = self.world.loop
        loop.work = tuple(sorted((*loop.work, work), key=lambda one: one.slot))

    # -- the end of a request

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
            if "stay-in-pass" not in self.planted:
                loop.staged_pass = without(loop.staged_pass, request.slot)
            if request.active("ending_finished") and self.world.options.keeps_answers:
                position = request.computed_rows
                self.add_work(Work(WorkKind.CAPTURE, request.slot, request.number, position))
            self.release_if_still(request.slot)

    def release_if_still(self, slot: int) -> None:
        loop = self.world.loop
        request = self.world.requests[loop.running[slot]]
        in_use = any(slot in flight.slots for flight in loop.flights)
        in_use = in_use or Memory(self.world).is_captured(slot)
        if in_use and "early-free" not in self.planted:
            return
        loop.retiring -= {slot}
        loop.saving -= {slot}
        loop.work = tuple(work for work in loop.work if work.slot != slot)
        self.close(slot)
        request.saved_rows = None
        self.post(request, "retired")
