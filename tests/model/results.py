"""Mirrors the results half of `luce.actors.step_loop`: a step is done, and everyone gets their part."""

from __future__ import annotations

from collections.abc import Collection

from luce.charts.explorer import Violation
from tests.model.loop_actor import LoopActor
from tests.model.world import Work

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
            if row.prefill:
                self.post(request, "chunk.done", row.count)
            if row.sample:
                self.post(request, "token", row.request in stops, 0 if row.prefill else row.count)
        for slot in sorted(loop.retiring):
            self.release_if_still(slot)

    def _end_work(self, work: Work, failed: bool) -> None:
        loop = self.world.loop
        request = self.world.requests[work.request]
        loop.saving -= {work.slot}
        if failed or not work.saves:
            request.saved_rows = None
        if work.saves or failed:
            self.close(work.slot)
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
