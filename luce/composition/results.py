"""Mirrors the results half of `luce.actors.step_loop`: a step is done, and everyone gets their part."""

from __future__ import annotations

from collections.abc import Collection

from luce.charts.explorer import Violation
from luce.composition.loop_actor import LoopActor
from luce.composition.world import Request, Row, Work
from luce.engines.seam import WorkKind

__all__ = ["Results"]


class Results(LoopActor):
    def hand_out(
        self, *, stops: Collection[int] = (), fails: bool = False, copies_fail: bool = False
    ) -> None:
        """The oldest step is done: the loop takes it up and hands out."""
        loop = self.world.loop
        self.feeds("step.done")
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
            void = row.sample and not row.masked and (request.masking or request.mask is not None)
            if void and "no-void" not in self.planted:
                request.next_row = row.start
                continue
            if row.layers is not None:
                self._end_slice(request, row, row.layers[1])
            elif row.slot not in loop.retiring:
                for position in row.captured(request.capture_points):
                    self.add_work(Work(WorkKind.CAPTURE, row.slot, row.request, position))
            if row.prefill and "echoes" in self.planted:
                self.post(request, "chunk.done", 0)
            if row.prefill:
                self.post(request, "chunk.done", row.count)
            if row.sample:
                rows = 0 if row.prefill else row.count
                self.post(request, "token", row.request in stops, rows, row.masked)
        for slot in sorted(loop.retiring):
            self.release_if_still(slot)

    def _end_slice(self, request: Request, row: Row, layer: int) -> None:
        loop = self.world.loop
        done = layer == self.world.options.layers
        self.post(request, "slice.done", row.count if done else 0, not done)
        if done and row.start + row.count == request.prompt_rows - 1 and row.slot not in loop.retiring:
            self.grow(row.slot, request.next_row)
            self.add_work(Work(WorkKind.IMPORT, row.slot, row.request, request.next_row))

    def _end_work(self, work: Work, failed: bool) -> None:
        loop = self.world.loop
        request = self.world.requests[work.request]
        if loop.running.get(work.slot) != work.request:
            raise Violation(f"a copy of request {work.request} was made in slot {work.slot}, freed meanwhile")
        if work.kind is WorkKind.CAPTURE:
            return
        if work.kind is WorkKind.IMPORT:
            request.imported = not failed
            self.post(request, "step.failed" if failed else "prefix.imported")
            return
        if work.kind is WorkKind.ADOPT:
            if failed:
                self._end_bad_adoption(request, work.slot)
            return
        saves = work.kind is WorkKind.SAVE
        loop.saving -= {work.slot}
        if failed or not saves:
            request.saved_rows = None
        if saves or failed:
            self.close(work.slot)
            if work.slot in loop.retiring:
                loop.retiring -= {work.slot}
                request.saved_rows = None
                self.post(request, "retired")
                return
            loop.parked |= {work.request}
        if failed:
            self.post(request, "restore.failed")
        elif not saves and work.slot not in loop.retiring:
            self.post(request, "resume")

    def _end_bad_adoption(self, request: Request, slot: int) -> None:
        """The prefix is no good: the request starts over."""
        loop = self.world.loop
        if slot in loop.retiring:
            return
        self.close(slot)
        loop.parked |= {request.number}
        self.post(request, "adoption.failed")
