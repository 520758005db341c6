"""What the step loop does with the rows of a step that is done: every request gets its part."""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING

from luce.actors.flight import Flight
from luce.actors.messages import ChunkDone, SliceDone, StepFailed, Token
from luce.actors.request import Request
from luce.actors.tracing import failed
from luce.engines.seam import Outcome, Segment, SegmentKind
from luce.errors import DeviceError
from luce.tuples import new_tuple

if TYPE_CHECKING:
    from luce.actors.step_loop import StepLoop
    from luce.trace.events import EventStream

__all__ = ["hand_on"]

_PREFILL = SegmentKind.PREFILL
"""Finding a member of an enumeration takes a while, and this is needed for every lane."""


def hand_on(loop: StepLoop, flight: Flight, outcomes: tuple[Outcome, ...], events: EventStream) -> None:
    """Tell every request what became of its rows.

    A row that was launched ahead may turn out to have needed a mask for its token: it is void. Its request hears
    nothing of it, and the next segment starts where it did.
    """
    retiring, size = loop.retiring, loop.limits.block_size
    marked = []
    """Whose rows fill a block, or may be worth keeping the state of."""
    masks = flight.plan.masks or repeat(None)
    for segment, request, outcome, mask in zip(  # noqa: B905 - without masks, None for each
        flight.plan.segments, flight.requests, outcomes, masks
    ):
        slot, kind, start, _, _, sample, layers = segment
        mailbox = request.mailbox
        if outcome.error is not None:
            events.detail(failed, slot, "row", outcome.error)
            mailbox.put(StepFailed(DeviceError(outcome.error)))
            continue
        if layers is not None:
            _end_slice(loop, request, segment, layers[1])
            continue
        if (
            request.constraint is not None
            and mask is None
            and sample
            and (request.masking or request.mask is not None)
        ):
            request.next_row = start
            continue
        rows = outcome.kept
        end = start + rows
        if (request.capture_points or end // size > request.filled_blocks) and slot not in retiring:
            marked.append((request, end))
        if kind is _PREFILL:
            mailbox.put(ChunkDone(rows))
            rows = 0
        for token in outcome.tokens:
            mailbox.put(new_tuple(Token, (token, rows, "token")))
            rows = 0
    loop.memory.computed(marked)


def _end_slice(loop: StepLoop, request: Request, segment: Segment, layer: int) -> None:
    """A staged chunk went through its layers before ``layer``."""
    done = layer == loop.num_layers
    request.mailbox.put(SliceDone(segment.count if done else 0, not done))
    staged = segment.start + segment.count == request.prompt_rows - 1
    if done and staged and segment.slot not in loop.retiring:
        loop.memory.begin_import(request)  # `prefix.imported` follows when the copy is made
