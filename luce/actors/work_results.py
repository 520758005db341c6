"""What the step loop does when the engine has copied a state: saved, restored, captured, adopted or imported."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from luce.actors.messages import AdoptionFailed, Plain, RestoreFailed, StepFailed
from luce.actors.request import Request
from luce.engines.seam import SlotWork, WorkKind, WorkOutcome
from luce.errors import DeviceError

if TYPE_CHECKING:
    from luce.actors.step_loop import StepLoop

__all__ = ["end_work"]

log = logging.getLogger("luce.loop")


def end_work(loop: StepLoop, request: Request, work: SlotWork, outcome: WorkOutcome) -> None:
    """A copy of a request's state was made, or failed."""
    if work.kind is WorkKind.CAPTURE:
        loop.memory.cache.captured(work, outcome)
        if request.machine.active("staging_importing"):  # see `_end_import`
            request.mailbox.put(Plain("prefix.imported"))
        return
    if work.kind is WorkKind.ADOPT:
        _end_adoption(loop, request, work, outcome)
        return
    if work.kind is WorkKind.IMPORT:
        _end_import(loop, request, work, outcome)
        return
    if work.kind is WorkKind.SAVE:
        loop.saving.discard(work.slot)
        loop.memory.end_save(request, outcome)
        moved_out = True
    else:
        loop.memory.end_restore(request, outcome)
        moved_out = outcome.error is not None
    if moved_out:
        del loop.running[work.slot]
        if work.slot in loop.retiring:  # it ended meanwhile
            loop.retiring.discard(work.slot)
            loop.memory.end(request)
            request.mailbox.put(Plain("retired"))
            return
        loop.parked[request.order] = request
    if outcome.error is not None:
        log.warning("request %s: %s failed: %s", request.submission.id, work.kind.value, outcome.error)
        request.mailbox.put(RestoreFailed(DeviceError(outcome.error)))
    elif work.kind is WorkKind.RESTORE and work.slot not in loop.retiring:
        request.mailbox.put(Plain("resume"))


def _end_adoption(loop: StepLoop, request: Request, work: SlotWork, outcome: WorkOutcome) -> None:
    """A prefix is in its slot, or was no good: then the request starts over like one that was dropped. No parking
    order: those meet only requests that go on, and this one may just be ending."""
    loop.memory.cache.adopted(work.slot, failed=outcome.error is not None)
    if outcome.error is None or work.slot in loop.retiring:
        return
    log.warning("request %s: a cached prefix is no good: %s", request.submission.id, outcome.error)
    del loop.running[work.slot]
    loop.memory.close(request)
    loop.parked[request.order] = request
    request.mailbox.put(AdoptionFailed(DeviceError(outcome.error)))


def _end_import(loop: StepLoop, request: Request, work: SlotWork, outcome: WorkOutcome) -> None:
    """A staged prompt is in its blocks, or its request fails. Where others wait for it they are to find it once it goes
    on: it is copied for them before that."""
    if outcome.error is not None:
        request.mailbox.put(StepFailed(DeviceError(outcome.error)))
        return
    if work.slot not in loop.retiring and loop.memory.end_import(request):
        return
    request.mailbox.put(Plain("prefix.imported"))
