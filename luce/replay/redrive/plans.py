"""The plans of a trace, in a policy's place: for servers whose policy this one does not have."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

from luce.engines.seam import RowSource, Segment, SegmentKind
from luce.replay.redrive.outcome import Redrive
from luce.scheduling.state import Decision, Grant, LoopState, Park, ParkKind, Resume
from luce.trace.events import EventRecord
from luce.trace.reader import FileStart, Item
from luce.trace.schema import Planned

__all__ = ["RecordedPlans", "decision_of"]


class RecordedPlans:
    """A policy that decides as the trace says, whatever the state. Nothing, where the trace says no more.

    Args:
        redrive: how far the trace has been compared.
        rest: the trace from there on.
    """

    def __init__(self, redrive: Redrive, rest: Callable[[], Iterator[Item]]) -> None:
        self._redrive = redrive
        self._rest = rest
        self._made = 0

    def __call__(self, state: LoopState) -> Decision:
        ahead = self._made - self._redrive.plans
        self._made += 1
        planned = next(islice(self._coming(), ahead, None), None)
        return Decision() if planned is None else decision_of(planned)

    def _coming(self) -> Iterator[Planned]:
        for item in self._rest():
            if not isinstance(item, EventRecord | FileStart) and isinstance(item[2], Planned):
                yield item[2]


def decision_of(planned: Planned) -> Decision:
    """What :func:`luce.actors.tracing.planned` made a record of.

    Raises:
        ValueError: the record contradicts itself, or says what this luce does not know.
    """
    alike = (run for run in planned.runs for _ in range(run.times))
    return Decision(
        tuple(Grant(key, slot) for key, slot in planned.grants),
        tuple(Resume(key, slot) for key, slot in planned.resumes),
        tuple(Park(slot, ParkKind(event)) for slot, event in planned.parks),
        planned.fails,
        tuple(
            Segment(
                slot, SegmentKind(run.kind), start, run.count, RowSource(run.source), run.sample, run.layers
            )
            for slot, start, run in zip(planned.slots, planned.starts, alike, strict=True)
        ),
    )
