"""One line in the log for every request, when it is over.

It says who, where, how it ended and how long it took, and why it was refused: the error's code and the field at fault,
its name alone. Nothing else of what was asked or answered is in it. Fields that have no value are left out.
Health probes are logged at debug level, all else at info. Fields are the record's ``extra``: whoever set the log up
decides how they are written.
"""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Iterator, Sequence
from typing import Any, cast

import attrs
import trio
from quart import Request

from luce.actors.submission import Handle
from luce.errors import quoted, shown_name
from luce.http.arrival import arrival
from luce.http.route_names import address

__all__ = ["GIVEN_ID", "PROBES", "RequestRecord", "record_of"]

log = logging.getLogger("luce.requests")

GIVEN_ID = re.compile(r"[\x21-\x7e]{1,128}")
"""Of a caller's name for a request, the whole of it."""
PROBES = ("/health", "/ready")
"""What load balancers and supervisors ask all the time."""
_PLAIN_PLACE = re.compile(r"[\w.\[\]-]{1,100}", re.ASCII)
"""A field that looks like no other part of a line; others are quoted."""
_RECORD = "luce.record"


@attrs.define(eq=False)
class RequestRecord:
    """What is known of a request while it lasts. Seconds are on trio's clock."""

    id: str
    """The caller's, if it sent a plain one, or ours; also the answer's ``x-request-id``."""
    started: float
    status: int | None = None
    """None until the answer's head was sent."""
    complete: bool = False
    """The answer's last byte was sent."""
    handles: list[Handle] = attrs.field(factory=list)
    """What runs for it."""
    code: str | None = None
    """Of the error that it was answered with."""
    param: str | None = None
    """The field at fault. May hold names that the client chose."""

    @classmethod
    def begin(cls, request: Request) -> RequestRecord:
        given = request.headers.get("X-Request-Id", "")
        record = cls(given if GIVEN_ID.fullmatch(given) else uuid.uuid4().hex, arrival(request))
        cast(dict[str, Any], request.scope)[_RECORD] = record
        return record

    def write(self, request: Request) -> None:
        """Log the line."""
        rule = None if request.url_rule is None else request.url_rule.rule
        level = logging.DEBUG if rule in PROBES else logging.INFO
        if log.isEnabledFor(level):
            log.log(level, "request", extra=dict(self._fields(request, rule, trio.current_time())))

    def _fields(self, request: Request, rule: str | None, now: float) -> Iterator[tuple[str, object]]:
        yield "request_id", self.id
        yield "method", shown_name(request.method)
        yield "path", address(rule) if rule is not None else shown_name(request.path)
        if self.status is not None:
            yield "status", self.status
        yield "outcome", self._outcome()
        if self.code is not None:
            yield "code", self.code
        if self.param is not None:
            yield "param", self.param if _PLAIN_PLACE.fullmatch(self.param) else quoted(self.param)
        if not self.complete:
            yield "complete", False
        if self.handles:
            yield from _work(self.handles, self.started, now)
        if len(self.handles) > 1:
            yield "answers", len(self.handles)
        yield "duration_s", round(now - self.started, 3)

    def _outcome(self) -> str:
        """As the request's chart ends (finished, failed, cancelled), or refused or answered if nothing ran for it."""
        if self.handles:
            ends = [handle.end for handle in self.handles]
            outcomes = ["cancelled" if end is None else _OUTCOMES[end.reason] for end in ends]
            return next((one for one in outcomes if one != "finished"), "finished")
        if self.status is None:
            return "cancelled"
        if self.status >= 500:
            return "failed" if self.status == 500 else "refused"
        return "answered" if self.status < 400 else "refused"


_OUTCOMES = {"stop": "finished", "length": "finished", "cancelled": "cancelled", "error": "failed"}


def _work(handles: Sequence[Handle], started: float, now: float) -> Iterator[tuple[str, object]]:
    """Tokens of all answers, a prompt that several choices share counted once; all else is the first answer's."""
    handle = handles[0]
    timings, end = handle.timings, handle.end
    yield "answer", handle.id
    if end is not None and _OUTCOMES[end.reason] == "finished":
        yield "finish", end.reason
    prompts = [one.usage for one in handles if one.choice == 0]
    yield "prompt_tokens", sum(one.prompt_tokens for one in prompts)
    yield "cached_tokens", sum(one.cached_tokens for one in prompts)
    yield "completion_tokens", sum(one.completion_tokens for one in handles)
    waited_until = next(at for at in (timings.granted, timings.ended, now) if at is not None)
    yield "queue_s", round(waited_until - timings.arrived, 3)
    if timings.first_token is not None:
        yield "first_token_s", round(timings.first_token - started, 3)


def record_of(request: Request) -> RequestRecord:
    return cast(RequestRecord, cast(dict[str, Any], request.scope)[_RECORD])
