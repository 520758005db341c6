"""A deliberate order for what commutes: most messages are handled at once, one after the other, and only then does
anything else happen.

Handling a message is one actor's own business: it takes the head of a mailbox, changes that actor's data, and appends
to other mailboxes. Everything else that may happen meanwhile commutes with it (what others append to the same mailbox
comes behind the head; the loop neither plans nor ends a turn while mail is under way), unless somebody reads what it
changes, or the order in which messages lie in the receiver's mailbox matters. Where neither is the case the delivery is
taken alone: a persistent set of one, as the literature on partial orders calls it. Every state with all mailboxes empty
is then still found, and so are the deadlocks and illegal events; what is left out are other orders on the way there.
`test_system.py` compares both explorations on all its scenarios.

What makes a delivery matter to others:
- a request's: it tells those that follow it to go on; it starts pictures, or enters `ending` while the encoder may ask
  about that (a picture of it is queued or encoded, or its `encode` is under way), or gives pictures back that others
  may ask for; it wakes an idle loop, where the first message decides; it stops a timer that may fire before that;
- the loop's: it sends something to requests that are not ending (drain, abort, an arrival after them), or stops
  its timer, or retires a request before a result of it arrives that else would be captured;
- the encoder's: everything but a drop that takes nothing from anybody.

All of it presumes the turn rule, so the defect of having none is looked for without the reduction.
"""

from __future__ import annotations

from luce.charts.explorer import Violation
from luce.charts.interpreter import Configuration, Outcome
from luce.charts.model import Chart
from luce.composition.request_task import RequestTask
from luce.composition.world import Request, World

__all__ = ["alone"]

QUIET_IN_LOOP = frozenset({"rows.ready", "pass.wanted", "retire"})
"""Only the first one that an idle loop gets matters."""


def alone(world: World, charts: dict[str, Chart], seen: set[Configuration]) -> int | str | None:
    """Whose next delivery may be taken alone: a request's number, 'loop', 'encoder', or nobody's."""
    if world.loop.mailbox and _loop_alone(world):
        return "loop"
    for request in world.requests:
        if request.mailbox and _request_alone(world, request, RequestTask(world, charts, seen)):
            return request.number
    if world.encoder.mailbox and _encoder_alone(world):
        return "encoder"
    return None


def _loop_alone(world: World) -> bool:
    loop = world.loop
    event, active = loop.mailbox[0][0], loop.here.active
    if event == "retire" and _result_is_captured(world, loop.mailbox[0][1]):
        return False
    if event == "admit":
        return "open" in active
    if event == "window.elapsed":
        return not loop.window
    return event in QUIET_IN_LOOP


def _result_is_captured(world: World, number: int) -> bool:
    """Is a step under way whose result is to be copied for the prefix cache, unless its request has been retired?"""
    points = world.requests[number].capture_points
    rows = (row for flight in world.loop.flights for row in flight.rows)
    return any(row.request == number and row.captured(points) for row in rows)


def _request_alone(world: World, request: Request, task: RequestTask) -> bool:
    if ("encode", request.number) in world.encoder.mailbox:
        return False
    try:
        outcome = task.outcome(request.copy())
    except Violation:
        return True  # a fault, whenever it comes, as is an event that is illegal
    if outcome.then is None:
        return True
    return all(_unseen(world, request, outcome, send.target, send.event) for send in outcome.sends)


def _unseen(world: World, request: Request, outcome: Outcome, target: str, event: str) -> bool:
    """Does this send matter to nobody before it is handled?"""
    if target == "loop":
        return event in QUIET_IN_LOOP and "idle" not in world.loop.here.active
    if target == "followers":
        return not request.leads
    if target == "timer":
        return event not in request.timers or not world.options.fires(event)
    return target == "masks" or (event == "drop" and _nobody_asks(world, request))


def _nobody_asks(world: World, request: Request) -> bool:
    """Does the encoder not know it, or will nobody else ask the encoder for anything?"""
    held, _ = world.encoder.pictures
    if not any(request.number in holders for _, _, holders in held):
        return True
    return (
        world.encoder.encoding is None
        and not any(where == "queued" for _, where, _ in held)
        and all(event == "drop" for event, _ in world.encoder.mailbox)
        and not any(r.shape.spans and not r.final for r in world.requests if r is not request)
    )


def _encoder_alone(world: World) -> bool:
    """A drop that takes nothing from anybody: its sender holds no picture, or the encoder is at rest and nobody will
    ask. With a queue it could also be the moment at which dead work is noticed."""
    event, number = world.encoder.mailbox[world.next_for_encoder()]
    queued = any(where == "queued" for _, where, _ in world.encoder.pictures[0])
    return event == "drop" and not queued and _nobody_asks(world, world.requests[number])
