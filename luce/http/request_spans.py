"""OpenTelemetry spans of requests: one for each answer, and in it one for each state of its chart on the way.

Everything is read from the event stream, at the times of its records. Names of attributes are those of the GenAI
conventions, ``luce.…`` for the rest; nothing that was sent or generated is among them. Ended spans go to a processor of
the caller's, which must not block.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import attrs
import trio
from opentelemetry import trace
from opentelemetry.context import attach
from opentelemetry.propagate import extract
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer
from quart import request as http_request
from structlog.contextvars import get_contextvars

from luce.actors.tallies import PHASES
from luce.charts.interpreter import START
from luce.trace.events import EventRecord

if TYPE_CHECKING:
    from luce.actors.request import Request
    from luce.actors.service import Service
    from luce.http.asgi import App

__all__ = ["RequestSpans"]

_FINAL = frozenset({"finished", "failed", "cancelled"})


@attrs.define(eq=False)
class _Live:
    request: Request
    whole: Span
    phase: str
    part: Span
    here: tuple[str, ...]
    arrived: float
    begun: bool = False
    """It has its first token."""
    stalled: bool = False


class RequestSpans:
    """Makes spans as long as the service lives.

    Args:
        model: the served name.
    """

    def __init__(self, service: Service, app: App, tracer: Tracer, model: str) -> None:
        self._service = service
        self._tracer = tracer
        self._model = model
        self._live: dict[str | int, _Live] = {}
        self._epoch = time.time() - trio.current_time()
        """What turns the server's clock into the world's."""
        service.events.listen(self._see, machine="request")
        service.events.listen(self._watch_server, machine="server")

        @app.before_request
        async def follow_the_caller() -> None:
            attach(extract(http_request.headers))  # of this request's own task, and gone with it

    def _at(self, t: float) -> int:
        """Nanoseconds since 1970."""
        return int((t + self._epoch) * 1e9)

    def _see(self, record: EventRecord) -> None:
        live = self._live.get(record[3])  # by position: this runs for every token
        if live is None:
            if record.event == START:
                self._begin(record)
            return
        if not live.begun and record[4] == "token":
            live.begun = True
            live.whole.set_attribute("gen_ai.response.time_to_first_chunk", record.t - live.arrived)
        if record[6] is not live.here:
            self._move(live, record)

    def _begin(self, record: EventRecord) -> None:
        """In the task of the HTTP request, whose context names it and its caller's span."""
        order, request = next(reversed(self._service.requests.items()))
        arrived = self._service.arrivals[order]
        operation = "text_completion" if request.submission.id.startswith("cmpl-") else "chat"
        whole = self._tracer.start_span(
            f"{operation} {self._model}",
            kind=SpanKind.SERVER,
            start_time=self._at(arrived),
            attributes=dict(_asked(request, operation, self._model)),
        )
        phase = _phase(record.configuration)
        part = self._part(whole, phase, record.t)
        self._live[record.id] = _Live(request, whole, phase, part, record.configuration, arrived)

    def _part(self, whole: Span, phase: str, t: float) -> Span:
        context = trace.set_span_in_context(whole)
        return self._tracer.start_span(phase, context=context, start_time=self._at(t))

    def _move(self, live: _Live, record: EventRecord) -> None:
        live.here = here = record.configuration
        if here[0] in _FINAL:
            del self._live[record.id]
            self._end(live, here[0], record.t)
            return
        stalled = "stalled" in here
        if stalled != live.stalled:
            live.stalled = stalled
            live.whole.add_event("stalled" if stalled else "flowing", timestamp=self._at(record.t))
        phase = _phase(here)
        if phase != live.phase:
            live.phase = phase
            live.part.end(self._at(record.t))
            live.part = self._part(live.whole, phase, record.t)

    def _end(self, live: _Live, outcome: str, t: float) -> None:
        live.part.end(self._at(t))
        live.whole.set_attributes(dict(_answered(live.request, outcome)))
        if outcome == "failed":
            live.whole.set_status(Status(StatusCode.ERROR))
        live.whole.end(self._at(t))

    def _watch_server(self, record: EventRecord) -> None:
        """After a fault, or when the limit of an abort has passed, requests have no end of their own."""
        if record.configuration[0] in ("stopped", "failed"):
            for live in self._live.values():
                self._end(live, "failed", record.t)
            self._live.clear()


def _phase(here: tuple[str, ...]) -> str:
    return next(phase for phase in PHASES if phase in here)


def _asked(request: Request, operation: str, model: str) -> Iterator[tuple[str, Any]]:
    submission, params = request.submission, request.submission.params
    yield "gen_ai.operation.name", operation
    yield "gen_ai.provider.name", "luce"
    yield "gen_ai.request.model", model
    yield "gen_ai.response.id", submission.id
    yield "gen_ai.request.temperature", params.temperature
    yield "gen_ai.request.top_p", params.top_p
    yield "gen_ai.request.top_k", params.top_k
    yield "gen_ai.request.presence_penalty", params.presence_penalty
    yield "gen_ai.request.frequency_penalty", params.frequency_penalty
    if params.max_tokens is not None:
        yield "gen_ai.request.max_tokens", params.max_tokens
    if params.seed is not None:
        yield "gen_ai.request.seed", params.seed
    yield "luce.pictures", len(request.spec.image_rows)
    if (name := get_contextvars().get("request_id")) is not None:
        yield "luce.request_id", name


def _answered(request: Request, outcome: str) -> Iterator[tuple[str, Any]]:
    yield "gen_ai.usage.input_tokens", request.usage.prompt_tokens
    yield "gen_ai.usage.output_tokens", request.num_generated
    yield "gen_ai.usage.cache_read.input_tokens", request.usage.cached_tokens
    yield "luce.outcome", outcome
    yield "luce.parks", request.parks
    if outcome == "finished" and request.finish is not None:
        yield "gen_ai.response.finish_reasons", [request.finish]
