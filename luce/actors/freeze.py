"""The step loop's world as the policy sees it: one immutable picture for each plan."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from luce.actors.prefix_cache import awaits_capture, cut_row
from luce.engines.seam import WorkKind
from luce.scheduling.state import Lane, LoopState, Parked, Waiting
from luce.tuples import new_tuple

if TYPE_CHECKING:
    from luce.actors.step_loop import StepLoop

__all__ = ["freeze"]

_NONE = frozenset[int]()


def freeze(loop: StepLoop, *, run_ahead: bool, early: bool = False) -> LoopState:
    """What :func:`luce.scheduling.plan.plan` decides on. Costs what the slots cost, however many wait."""
    memory = loop.memory
    busy = _NONE.union(*[flight.slots for flight in loop.flights])
    if memory.work:
        busy |= {work.slot for work, _ in memory.work}
    continuing = _NONE.union(*[flight.sampling for flight in loop.flights])
    leaving = loop.retiring | loop.saving
    available = memory.pool.available
    # Who may give way is only asked when somebody may have to: host memory is looked up for it.
    pressed = available < len(loop.running)
    room = memory.room_to_save() if pressed else 0
    adopting, covered = memory.cache.adopting, memory.covered_rows
    stages = loop.limits.passes is not None
    lanes = []
    for slot, request in loop.running.items():  # by position: this runs for every slot in every step
        if slot in leaving:
            continue
        points = request.capture_points
        lanes.append(
            new_tuple(
                Lane,
                (
                    slot,
                    request.order,
                    request.next_row,
                    request.prompt_rows,
                    request.ready_rows,
                    request.row_limit - 1,
                    covered(request),
                    request.runnable and slot not in adopting and not (points and awaits_capture(request)),
                    slot in continuing,
                    slot in busy or request.masking,
                    pressed and request.savable and memory.save_cost(request) <= room,
                    pressed and request.droppable,
                    cut_row(request) if points else None,
                    request.staged_prompt if stages and request.wants_pass else None,
                    request.imported,
                    request.mask is not None,
                ),
            )
        )
    pace = None if run_ahead else loop.pace
    gathering = pace is not None and all(lane.prefilling for lane in lanes)
    free_slots = memory.free_slots
    # A plan made ahead moves nobody, so it need not know what anybody would cost: that is a look-up each.
    heads = () if run_ahead else islice(loop.waiting.items(), len(free_slots))
    return LoopState(
        limits=loop.limits,
        lanes=tuple(lanes),
        waiting=tuple(
            Waiting(key, memory.entry_cost(request), bool(request.missing_images)) for key, request in heads
        ),
        free_slots=free_slots,
        available_blocks=available,
        returning_blocks=memory.returning_blocks(loop.running[slot] for slot in loop.retiring - loop.saving),
        parked=() if run_ahead else _oldest_parked(loop),
        staged_pass=loop.staged_pass,
        importing=stages and memory.importing,
        admitting=loop.machine.active("open"),
        early=early,
        run_ahead=run_ahead,
        rows_beside=None if pace is None else pace.rows_beside(_answering(lanes), _captures(loop)),
        gather_rows=pace.gather_rows if pace is not None and gathering else None,
        cached_rows={slot: one.usage.cached_tokens for slot, one in loop.running.items()}
        if gathering
        else {},
    )


def _captures(loop: StepLoop) -> int:
    """Copies of states that the next plan makes."""
    return sum([work.kind is WorkKind.CAPTURE for work, _ in loop.memory.work])


def _answering(lanes: list[Lane]) -> int:
    """Lanes that may have a row of an answer in the step."""
    return max(1, sum([lane.next_row >= lane.prompt_rows and lane.runnable for lane in lanes]))


def _oldest_parked(loop: StepLoop) -> tuple[Parked, ...]:
    if not loop.parked:
        return ()
    key = min(loop.parked)
    return (Parked(key, loop.memory.entry_cost(loop.parked[key])),)
