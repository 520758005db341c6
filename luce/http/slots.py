"""GET /slots: where every request is, from its chart. No text, no token ids, nothing that was sent."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import trio
from msgspec import Struct
from quart import Response

from luce.actors.service import Service
from luce.actors.tallies import LiveRequest, RequestTallies
from luce.errors import CapacityError
from luce.http.errors import error_response

__all__ = ["Slots"]


class RequestState(Struct, frozen=True):
    id: str
    """Of its answer; further choices of one answer have their number behind it."""
    choice: int
    """Which of several for one prompt it is."""
    request_id: str | None
    """Its ``x-request-id``."""
    phase: str
    states: tuple[str, ...]
    """All active states of request.scxml, outer ones first."""
    seconds_in_state: float
    seconds: float
    """Since it arrived."""
    slot: int | None
    position: int
    """Rows of its sequence that are computed."""
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    max_tokens: int
    blocks: int
    pictures: int
    pictures_encoded: int
    parks: int
    """How often it gave its slot back under memory pressure."""


class SlotsState(Struct, frozen=True):
    slots: int
    free: int
    requests: list[RequestState]
    """In the order in which they came."""


class Slots:
    def __init__(self, service: Service, tallies: RequestTallies) -> None:
        self._service = service
        self._tallies = tallies

    async def __call__(self, names: Mapping[str, str], *, fail_when_full: bool) -> Response:
        """
        Args:
            names: request ids by ids of answers.
            fail_when_full: answer 503 when no slot is free, as llama.cpp does for ``fail_on_no_slot``.
        """
        body = self.state(names)
        if fail_when_full and not body.free:
            return error_response(CapacityError("no slot is free"))
        return Response(msgspec.json.encode(body), content_type="application/json")

    def state(self, names: Mapping[str, str]) -> SlotsState:
        """How everything stands now. ``names``: request ids by ids of answers."""
        memory = self._service.loop.memory
        now = trio.current_time()
        requests = [_state(live, names.get(str(key)), now) for key, live in self._tallies.live.items()]
        return SlotsState(memory.capabilities.num_slots, len(memory.free_slots), requests)


def _state(live: LiveRequest, request_id: str | None, now: float) -> RequestState:
    request = live.request
    rows = request.spec.image_rows
    return RequestState(
        id=request.submission.id,
        choice=request.submission.choice,
        request_id=request_id,
        phase=live.phase,
        states=live.here,
        seconds_in_state=round(now - live.since, 3),
        seconds=round(now - live.arrived, 3),
        slot=request.slot,
        position=request.computed_rows,
        prompt_tokens=request.usage.prompt_tokens,
        cached_tokens=request.usage.cached_tokens,
        generated_tokens=request.num_generated,
        max_tokens=request.row_limit - request.usage.prompt_tokens,
        blocks=0 if request.hold is None else len(request.hold),
        pictures=len(rows),
        pictures_encoded=sum(one is not None for one in rows),
        parks=request.parks,
    )
