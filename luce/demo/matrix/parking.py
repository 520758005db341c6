"""A policy that parks one request at chosen rows, without need, and is the server's own in everything else."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from random import Random

import attrs
import trio

from luce.demo.matrix.cells import Cell
from luce.scheduling.plan import plan
from luce.scheduling.state import Decision, Lane, LoopState, Park, ParkKind

__all__ = ["Parking", "ParkingPolicy", "chosen_parkings"]


@attrs.frozen
class Parking:
    """Park once ``row`` rows are submitted; what saves waits for the prompt's end besides."""

    kind: ParkKind
    row: int
    hold: int = 0
    """Plans in which others run, and may take the slot, before it may come back."""


def chosen_parkings(cell: Cell, rng: Random, prompt: int, answer: int) -> list[Parking]:
    """When the request of a cell is parked.

    Args:
        prompt, answer: its rows, and the tokens of its answer.
    """
    early = rng.randrange(prompt - 8)
    late = [prompt + row for row in sorted(rng.sample(range(1, answer - 3), 2))]
    save, drop = ParkKind.SAVE, ParkKind.DROP
    if cell.saves and cell.drops:
        kinds = [save, drop] if rng.random() < 0.5 else [drop, save]
        at = list(zip(kinds, late, strict=True))
    elif cell.saves:
        at = [(save, row) for row in late]
    elif cell.drops:
        at = [(drop, early), (drop, late[1])]
    else:
        at = []
    return [Parking(kind, row, rng.choice((0, 2, 4))) for kind, row in at]


class ParkingPolicy:
    """Passed to a service in the place of :func:`plan`. Looks at nothing but the states it is given.

    Args:
        parkings: in the order of their rows.
    """

    def __init__(self, parkings: Sequence[Parking] = ()) -> None:
        self.watched: int | None = None
        """Arrival number of the request that is parked."""
        self.plans = 0
        """So many were made."""
        self.planned = trio.lowlevel.ParkingLot()
        """Woken at every plan."""
        self.started = False
        """Rows of the request were planned."""
        self.shared = 0
        """Steps with rows of the request and of others."""
        self.redone = 0
        """Rows of the request that were planned once more."""
        self.moved = 0
        """Times that it came back to another slot."""
        self.lent = 0
        """Times that another request got its slot while it was parked."""
        self._parkings = deque(parkings)
        self._hold = 0
        self._slot: int | None = None
        self._rows = 0

    def __call__(self, state: LoopState) -> Decision:
        self.plans += 1
        self.planned.unpark_all()
        lane = next((lane for lane in state.lanes if lane.order == self.watched), None)
        decision = self._decide(state, lane)
        if lane is not None:
            self._note(decision, lane)
        elif state.parked:
            self.lent += any(grant.slot == self._slot for grant in decision.grants)
        return decision

    def _decide(self, state: LoopState, lane: Lane | None) -> Decision:
        parking = self._due(lane)
        if lane is not None and parking is not None:
            if not lane.busy and not state.run_ahead:
                self._parkings.popleft()
                self._hold = parking.hold
                return Decision(parks=(Park(lane.slot, parking.kind),))
            # It sits out until the step in flight is done.
            decision = plan(state)
            others = tuple(segment for segment in decision.segments if segment.slot != lane.slot)
            return attrs.evolve(decision, segments=others)
        if self._hold and state.parked and not state.run_ahead:
            decision = plan(attrs.evolve(state, parked=()))
            if decision.moves or decision.segments:  # else nothing would ever wake the loop
                self._hold -= 1
                return decision
        return plan(state)

    def _due(self, lane: Lane | None) -> Parking | None:
        if lane is None or not self._parkings:
            return None
        parking = self._parkings[0]
        due = lane.next_row >= parking.row and (parking.kind is ParkKind.DROP or not lane.prefilling)
        return parking if due else None

    def _note(self, decision: Decision, lane: Lane) -> None:
        self.moved += self._slot not in (None, lane.slot)
        self._slot = lane.slot
        for segment in decision.segments:
            if segment.slot == lane.slot:
                self.started = True
                self.shared += len(decision.segments) > 1
                end = segment.start + segment.count
                self.redone += max(0, min(self._rows, end) - segment.start)
                self._rows = max(self._rows, end)
