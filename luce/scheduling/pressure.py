"""The pressure ladder (design §7): who gives way when the lanes of a step need more blocks than there are. Pure.

Blocks for a prompt and one more are promised at admission, so only decoding grows. Blocks go to the oldest lanes
first. When they run out, the newest lane that can be parked gives way, be it in need itself or not: saved to host
memory if there is room, else dropped and computed again later. Only when nobody can be parked, and nothing is on its
way back, does the newest lane in need fail.
"""

from __future__ import annotations

from typing import NamedTuple

from luce.scheduling.state import Lane, LoopState, Park, ParkKind

__all__ = ["Growth", "decode_growth", "decode_lanes"]


class Growth(NamedTuple):
    """Which decode rows get the blocks they need."""

    held_back: frozenset[int]
    """Slots that get no row in this step."""
    park: Park | None = None
    fail: int | None = None


_ALL = Growth(frozenset())


def decode_lanes(state: LoopState) -> list[Lane]:
    """Lanes that would decode in the next step, blocks aside. So does the last row of a staged prompt."""
    run_ahead = state.run_ahead
    return [
        lane
        for lane in state.lanes
        if lane.runnable
        and (lane.prompt_rows <= lane.next_row < lane.last_row or (lane.imported and lane.prefilling))
        and (not lane.masked if lane.in_flight else not run_ahead)
    ]


def decode_growth(state: LoopState, decoding: list[Lane]) -> Growth:
    """Share out the blocks that are there among :func:`decode_lanes`; under pressure, name who has to give way."""
    needy = [lane for lane in decoding if lane.next_row >= lane.covered_rows]
    if len(needy) <= state.available_blocks:
        return _ALL
    needy.sort(key=_arrival)
    starved = needy[state.available_blocks :]
    held_back = frozenset(lane.slot for lane in starved)
    if state.run_ahead or len(starved) <= state.returning_blocks:
        return Growth(held_back)
    victim = _victim(state)
    if victim is not None:
        if victim.busy:  # it sits this step out and is parked when the one in flight is done
            return Growth(held_back | {victim.slot})
        return Growth(held_back, Park(victim.slot, ParkKind.SAVE if victim.can_save else ParkKind.DROP))
    if state.returning_blocks or any(lane.busy for lane in state.lanes):
        return Growth(held_back)
    return Growth(held_back, fail=starved[-1].slot)


def _victim(state: LoopState) -> Lane | None:
    """The newest lane that can be parked. The last lane of all is none: without others it has the whole pool."""
    if len(state.lanes) < 2:
        return None
    parkable = [lane for lane in state.lanes if lane.can_save or lane.can_drop]
    return max(parkable, key=_arrival, default=None)


def _arrival(lane: Lane) -> int:
    return lane.order
