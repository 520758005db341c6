"""Requests of a trace with what they were answered, put together from its details: what a second run is compared with.

A step's details say which slot sampled what; whose slot it was, and which of these tokens its request took, follows
from plans and from the steps of its chart. Needs a trace with content.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import attrs

from luce.trace.events import EventRecord
from luce.trace.reader import FileStart, Item
from luce.trace.schema import Arrival, Gap, Landed, Launched, Planned

__all__ = ["RecordedRequest", "recorded_requests"]

_ENDINGS: Final = {"ending_finished": "finished", "ending_failed": "failed", "ending_cancelled": "cancelled"}
"""Where `request.scxml` goes when an answer is over: what its request took in before that is all of it."""


@attrs.frozen
class RecordedRequest:
    """One request, as far as the trace tells."""

    arrival: Arrival
    tokens: tuple[int, ...]
    """That it took, in order."""
    end: str
    """'finished', 'failed', 'cancelled', or 'alive' where the trace ends before it."""
    complete: bool = True
    """False: the trace does not say all of its tokens."""


@attrs.define
class _Live:
    arrival: Arrival
    sampled: dict[int, int] = attrs.field(factory=dict)
    """Token by position, the last one that was sampled for it: those of rows that turned out void are sampled again."""
    tokens: list[int] = attrs.field(factory=list)
    complete: bool = True

    def recorded(self, end: str) -> RecordedRequest:
        return RecordedRequest(self.arrival, tuple(self.tokens), end, self.complete)


@attrs.define
class _State:
    live: dict[int, _Live] = attrs.field(factory=dict)
    """Requests whose answer is not over, by arrival number."""
    orders: dict[str, int] = attrs.field(factory=dict)
    owners: dict[int, int] = attrs.field(factory=dict)
    """Arrival number by slot; of slots that nobody has any more, the last one's."""
    plan: Planned | None = None
    flights: dict[int, dict[int, tuple[int, int]]] = attrs.field(factory=dict)
    """By step and slot: arrival number and position of the token that is sampled."""


def recorded_requests(items: Iterable[Item]) -> Iterator[RecordedRequest]:
    """Each request when its answer is over; at the end those that have none yet. Memory is that of who is under way.

    Requests that had arrived before the trace begins, or that stand around a gap in it, are left out.
    """
    state, expected = _State(), -1
    for item in items:
        if isinstance(item, EventRecord):
            expected = item.seq + 1
            if item.machine == "request":
                yield from _moved(state, item)
        elif isinstance(item, FileStart):
            if item.header.first != expected:
                state = _State()
        elif isinstance(item[2], Gap):
            state = _State()
        else:
            _noted(state, item[2])
    for one in state.live.values():
        yield one.recorded("alive")


def _moved(state: _State, record: EventRecord) -> Iterator[RecordedRequest]:
    order = state.orders.get(str(record.id))
    one = None if order is None else state.live.get(order)
    if one is None or order is None:
        return
    if record.event == "token":
        position = one.arrival.prompt_tokens + len(one.tokens)
        token = one.sampled.pop(position, None)
        one.complete = one.complete and token is not None
        if one.complete and token is not None:
            one.tokens.append(token)
    for place in record.configuration:
        if place in _ENDINGS:
            del state.live[order], state.orders[str(record.id)]
            yield one.recorded(_ENDINGS[place])


def _noted(state: _State, detail: object) -> None:
    if isinstance(detail, Arrival):
        state.live[detail.order] = _Live(detail)
        state.orders[detail.id] = detail.order
    elif isinstance(detail, Planned):
        state.plan = detail
        state.owners |= {slot: order for order, slot in (*detail.grants, *detail.resumes)}
    elif isinstance(detail, Launched):
        state.flights[detail.number] = dict(_sampling(state))
    elif isinstance(detail, Landed):
        sampling = state.flights.pop(detail.number, {})
        for slot, tokens in detail.sampled or ():
            order, position = sampling.get(slot, (-1, 0))
            if order in state.live:
                state.live[order].sampled |= {position + at: token for at, token in enumerate(tokens)}


def _sampling(state: _State) -> Iterator[tuple[int, tuple[int, int]]]:
    """Slot, and whose token comes from it for which position, of the plan that is launched."""
    plan = state.plan
    if plan is None:
        return
    alike = (run for run in plan.runs for _ in range(run.times))
    for slot, start, run in zip(plan.slots, plan.starts, alike, strict=True):
        if run.sample and slot in state.owners:
            yield slot, (state.owners[slot], start + run.count)
