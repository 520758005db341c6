"""Looks on while real actors run: logs what they do, and checks what must hold at every step.

Checked here: slots and what a request holds at its end (I1), parking only what may be parked (I4), one end a request
(I5), first come first served through parking (I8), how long mailboxes get (I13). Blocks are counted by the loop itself
whenever it is idle (I2), and no step is illegal, or the fake engine had refused it.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any

from luce.actors.mailbox import Mailbox
from luce.actors.messages import EncodeFailed, ImageReady
from luce.actors.request import Request
from luce.actors.service import Service
from luce.engines.fake.engine import FakeEngine, FakeTicket
from luce.engines.seam import StepPlan, WorkKind
from luce.scheduling.plan import plan
from luce.scheduling.state import Decision, LoopState, Park, ParkKind
from luce.trace.events import EventRecord

__all__ = ["Watch", "WatchedEngine", "watched_mailboxes", "watched_plan"]

FINAL = frozenset({"finished", "failed", "cancelled"})


class WatchedEngine(FakeEngine):
    """A fake engine that keeps a digest of the plans that it was given."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.plans = blake2b(digest_size=16)
        self.pictures: Counter[bytes] = Counter()
        """How often each was encoded."""

    def does(self, kind: WorkKind) -> bool:
        return kind is not WorkKind.IMPORT or self.capabilities.whole_image_blocks

    def launch(self, plan: StepPlan) -> FakeTicket:
        self.plans.update(repr(plan).encode())
        return super().launch(plan)

    async def encode_async(self, image: Any) -> Any:
        self.pictures[image.digest] += 1
        return await super().encode_async(image)


@functools.wraps(plan)
def watched_plan(state: LoopState) -> Decision:
    """The server's policy, with its decision looked at."""
    decision = plan(state)
    grants, resumes = decision.grants, decision.resumes
    granted, head = [grant.key for grant in grants], [waiting.key for waiting in state.waiting]
    assert granted == head[: len(granted)], "the grants are not the head of the queue"
    assert head == sorted(head), "the queue is not in order of arrival"
    resumed, parked = [resume.key for resume in resumes], [parked.key for parked in state.parked]
    assert resumed == parked[: len(resumed)], "not the oldest comes back"
    assert not (grants and len(resumes) < len(parked)), "somebody overtakes a parked request"
    assert not grants or state.admitting, "somebody is let in after the drain"
    slots = [given.slot for given in (*grants, *resumes)]
    assert len(set(slots)) == len(slots) and set(slots) <= set(state.free_slots), "a slot is given out twice"
    lanes = {lane.slot: lane for lane in state.lanes}
    for park in decision.parks:
        _check_park(park, lanes[park.slot], state)
    return decision


def _check_park(park: Park, lane: Any, state: LoopState) -> None:
    may = lane.can_save if park.kind is ParkKind.SAVE else lane.can_drop
    assert may, f"{park.kind.value} of one that must not"
    assert not lane.busy, "a slot is taken away while a step holds rows of it"


class Watch:
    """Listens to one service."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.events = blake2b(digest_size=16)
        self.counts: Counter[str] = Counter()
        """Of events, by machine and name."""
        self.live: dict[str, Request] = {}
        self.ended: Counter[str] = Counter()
        """Final states reached, by request; each exactly once."""
        self.broken: list[str] = []
        """Rules, when and by whom. Kept for the end: a request catches what is raised in its task."""
        service.events.listen(self._see)

    def _see(self, record: EventRecord) -> None:
        self.events.update(f"{record.machine} {record.id} {record.event} {record.guards} ".encode())
        self.events.update(" ".join(record.configuration).encode())
        self.counts[f"{record.machine} {record.event}"] += 1
        if record.machine == "request":
            self._see_request(record)
        elif record.machine == "loop" and len(self.service.loop.running) > self.service.loop.limits.num_slots:
            self._break(record, "more slots are in use than there are")

    def _break(self, record: EventRecord, rule: str) -> None:
        self.broken.append(f"{record.t:.3f} s, {record.machine} {record.id}, {record.event}: {rule}")

    def _see_request(self, record: EventRecord) -> None:
        name, loop = str(record.id), self.service.loop
        if record.event == "(start)":
            request = next(reversed(self.service.requests.values()))
            if request.submission.id != name or name in self.live or name in self.ended:
                self._break(record, "starts twice, or not as the newest request")
            self.live[name] = request
            return
        request = self.live.get(name)
        if request is None:
            self._break(record, "goes on after its end")
            return
        if record.event == "slot.granted":
            if loop.parked:
                self._break(record, "overtakes a parked request")
            # Choices that waited for another one's prompt may come just now, after the grant.
            if any(request.order > other for other, one in loop.waiting.items() if not one.follows):
                self._break(record, "overtakes an earlier request")
        elif record.event in ("park.drop", "park.save") and not (request.recomputable or request.prefix_lost):
            self._break(record, "is parked and cannot be computed again")
        if FINAL & set(record.configuration):
            held = self._held(request)
            if held:
                self._break(record, f"has ended and holds {held}")
            del self.live[name]
            self.ended[name] += 1

    def _held(self, request: Request) -> dict[str, object]:
        """What a request at its end should not have any more."""
        loop, encoder, order = self.service.loop, self.service.encoder, request.order
        held = {
            "slot": request.slot,
            "blocks": request.hold,
            "saved state": request.saved,
            "place in a queue": order in loop.waiting or order in loop.parked or None,
            "lane": next((slot for slot, other in loop.running.items() if other is request), None),
            "work": next((work for work, owner in loop.memory.work if owner is request), None),
            "pictures": True if request in encoder.cache.requests else None,
            "timer": next((event for owner, event in self.service.timers._due if owner == order), None),
            "open answer": None if request.buffer.ended else True,
        }
        return {name: one for name, one in held.items() if one is not None}


@contextmanager
def watched_mailboxes(kind_of: Callable[[Mailbox[Any]], str]) -> Iterator[Counter[str]]:
    """The longest that mailboxes of each kind get. For requests only what is no picture counts: there is one more
    message for each of those.
    """
    longest: Counter[str] = Counter()
    put = Mailbox.put

    def watched(self: Mailbox[Any], item: Any) -> None:
        put(self, item)
        items = self.items
        if len(items) > 1:
            kind = kind_of(self)
            if len(items) > longest[kind]:
                pictures = sum(isinstance(item, ImageReady | EncodeFailed) for item in items)
                length = len(items) - (pictures if kind == "request" else 0)
                longest[kind] = max(longest[kind], length)

    Mailbox.put = watched  # type: ignore[method-assign]
    try:
        yield longest
    finally:
        Mailbox.put = put  # type: ignore[method-assign]
