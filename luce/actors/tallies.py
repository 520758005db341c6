"""What all requests together have done, and when each living one came into its state: kept from the event stream.

Nothing happens here that a chart has not said. A token costs one call, a look-up and a bucket; all else is once for a
request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from luce.actors.histogram import Histogram
from luce.charts.interpreter import START
from luce.trace.events import EventRecord

if TYPE_CHECKING:
    from luce.actors.request import Request
    from luce.actors.service import Service

__all__ = ["PHASES", "REASONS", "LiveRequest", "RequestTallies"]

PHASES: Final = ("following", "queued", "encoding", "staging", "decoding", "parked", "ending")
"""States of `request.scxml` of which a living request is in exactly one."""

REASONS: Final = ("stop", "length", "abort", "error")
"""How requests end, in vLLM's words: whole by itself or by its limit, cancelled, failed."""

_OUTCOMES = {"ending_cancelled": "abort", "ending_failed": "error"}
_FINAL = frozenset({"finished", "failed", "cancelled"})

# Those of vLLM, with finer ones below where small models are.
_FIRST = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1,
    2.5,
    5,
    7.5,
    10,
    20,
    40,
    80,
    160,
    640,
)
_BETWEEN = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.075,
    0.1,
    0.15,
    0.2,
    0.3,
    0.4,
    0.5,
    0.75,
    1,
    2.5,
    5,
    10,
    40,
)
_CHOICES = (1, 2, 5, 10, 20)
_WHOLE = (0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920)


@attrs.define(eq=False)
class LiveRequest:
    """What the event stream has said of one request so far. Seconds are on the server's clock."""

    request: Request
    arrived: float
    """It was asked for; its body and preparation came later."""
    submitted: float
    here: tuple[str, ...]
    """Active states."""
    since: float
    """For how long they have been the same."""
    granted: float | None = None
    first_token: float | None = None
    last_token: float | None = None
    ended: bool = False

    @property
    def phase(self) -> str:
        """One of :data:`PHASES`."""
        return next(phase for phase in PHASES if phase in self.here)


class RequestTallies:
    """Counts since it was made, which is before the first request.

    Args:
        service: whose requests.
    """

    def __init__(self, service: Service) -> None:
        self.live: dict[str | int, LiveRequest] = {}
        """Every request whose chart is not final, by its id, in the order in which they came."""
        self.request_choices = Histogram(_CHOICES)
        """Of those that came, how many choices each asked for; further choices are no requests here."""
        self.prompt_tokens = 0
        """Of requests that have got their first token."""
        self.prefix_queries = 0
        """Prompt tokens that were looked up in the prefix cache."""
        self.prefix_hits = 0
        """Of these, those that were there."""
        self.longest = 0
        """Tokens of the longest sequence, prompt and answer, that has ended whole."""
        self.ended = dict.fromkeys(REASONS, 0)
        self.time_to_first_token = Histogram(_FIRST)
        self.inter_token = Histogram(_BETWEEN)
        self.queue_time = Histogram(_WHOLE)
        self.prefill_time = Histogram(_WHOLE)
        # Of whole answers only:
        self.decode_time = Histogram(_WHOLE)
        self.latency = Histogram(_WHOLE)
        sizes = _sizes(service.model.engine.capabilities.max_context)
        self.request_prompt_tokens = Histogram(sizes)
        self.request_generation_tokens = Histogram(sizes)
        self._requests: dict[int, Request] = service.requests
        self._arrivals: dict[int, float] = service.arrivals
        service.events.listen(self._see, machine="request")

    @property
    def generation_tokens(self) -> int:
        """All that were part of an answer: first ones and others."""
        return sum(self.time_to_first_token.counts) + sum(self.inter_token.counts)

    def _see(self, record: EventRecord) -> None:
        live = self.live.get(record[3])  # by position: this runs for every token
        if live is None:
            if record.event == START:
                self._begin(record)
            return
        here = record[6]
        # Results of steps that were in flight at its end are no part of an answer.
        if record[4] == "token" and not live.ended:
            now = record[1]
            last = live.last_token
            if last is None:
                self._count_first(live, now)
            else:
                self.inter_token.add(now - last)
            live.last_token = now
        elif record.event == "slot.granted":
            self._grant(live, record.t)
        if here is not live.here:
            self._move(live, record)

    def _move(self, live: LiveRequest, record: EventRecord) -> None:
        live.here = record.configuration
        live.since = record.t
        if live.here[0] in _FINAL:
            del self.live[record.id]
        elif "ending" in live.here and not live.ended:
            self._end(live, record.t)

    def _begin(self, record: EventRecord) -> None:
        order = next(reversed(self._requests))  # it starts when it is entered there
        request = self._requests[order]
        assert request.submission.id == record.id, (request.submission.id, record.id)
        if request.submission.choice == 0:
            self.request_choices.add(request.submission.n)
        self.live[record.id] = LiveRequest(
            request, self._arrivals[order], record.t, record.configuration, record.t
        )

    def _grant(self, live: LiveRequest, now: float) -> None:
        live.granted = now
        self.queue_time.add(now - live.submitted)
        if live.request.keys is not None:
            self.prefix_queries += live.request.usage.prompt_tokens
            self.prefix_hits += live.request.usage.cached_tokens

    def _count_first(self, live: LiveRequest, now: float) -> None:
        assert live.granted is not None
        live.first_token = now
        self.prompt_tokens += live.request.usage.prompt_tokens
        self.time_to_first_token.add(now - live.arrived)
        self.prefill_time.add(now - live.granted)

    def _end(self, live: LiveRequest, now: float) -> None:
        live.ended = True
        request = live.request
        if "ending_finished" not in live.here:
            self.ended[next(reason for state, reason in _OUTCOMES.items() if state in live.here)] += 1
            return
        assert request.finish is not None and live.first_token is not None
        self.ended[request.finish] += 1
        self.decode_time.add(now - live.first_token)
        self.latency.add(now - live.arrived)
        self.request_prompt_tokens.add(request.usage.prompt_tokens)
        self.request_generation_tokens.add(request.num_generated)
        self.longest = max(self.longest, request.usage.prompt_tokens + request.num_generated)


def _sizes(most: int) -> list[float]:
    """1, 2, 5, 10, … up to the context."""
    return [
        float(step * 10**power)
        for power in range(len(str(most)))
        for step in (1, 2, 5)
        if step * 10**power <= most
    ]
