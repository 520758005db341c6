"""A policy that parks every request at chosen rows, without need, and is the server's own in everything else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Sequence

import attrs

from luce.scheduling.plan import plan
from luce.scheduling.state import Decision, Lane, LoopState, Park, ParkKind

SAVE, DROP = ParkKind.SAVE, ParkKind.DROP


HOLD = 3
"""Plans in which others run and may take the slot, if they can, before somebody parked may come back."""


class ParkEveryone:
    """Args:
    parkings: what happens to each request, in order: how it is parked, and once how many rows of its answer are
        submitted; negative for rows before the end of its prompt. What saves waits for the prompt's end.
    """

    def __init__(self, *parkings: tuple[ParkKind, int]) -> None:
        self.parked: Counter[ParkKind] = Counter()
        self.moved = 0
        """Times that a request came back to another slot."""
        self._parkings: Sequence[tuple[ParkKind, int]] = parkings
        self._done: Counter[int] = Counter()
        """Parkings, by request."""
        self._prompts: dict[int, int] = {}
        self._slots: dict[int, int] = {}
        self._hold = 0

    def __call__(self, state: LoopState) -> Decision:
        for lane in state.lanes:
            self.moved += self._slots.get(lane.order, lane.slot) != lane.slot
            self._slots[lane.order] = lane.slot
        due = {lane.slot: lane for lane in state.lanes if self._due(lane) is not None}
        if not state.run_ahead:
            for lane in due.values():
                if not lane.busy:
                    kind = self._parkings[self._done[lane.order]][0]
                    self._done[lane.order] += 1
                    self.parked[kind] += 1
                    self._hold = HOLD
                    return Decision(parks=(Park(lane.slot, kind),))
            if self._hold and state.parked:
                self._hold -= 1
                decision = _without(plan(attrs.evolve(state, parked=())), due)
                if decision.moves or decision.segments:  # else nothing would ever wake the loop
                    return decision
        # Whoever is due sits out until the step in flight is done.
        return _without(plan(state), due)

    def _due(self, lane: Lane) -> ParkKind | None:
        prompt = self._prompts.setdefault(lane.order, lane.prompt_rows)
        if self._done[lane.order] >= len(self._parkings):
            return None
        kind, row = self._parkings[self._done[lane.order]]
        return kind if lane.next_row >= prompt + row and (kind is DROP or not lane.prefilling) else None


def _without(decision: Decision, slots: Container[int]) -> Decision:
    return attrs.evolve(
        decision, segments=tuple(part for part in decision.segments if part.slot not in slots)
    )
