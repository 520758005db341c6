"""What every reply must be, whatever was asked."""

from __future__ import annotations

import json

from luce.http.errors import is_anthropic
from tests.fuzz.cases import Case
from tests.fuzz.transport import Reply

__all__ = ["Fault", "check"]

REFUSALS = {400, 404, 405, 408, 413, 415, 417, 431, 499, 503, 504}
"""What is documented, but 401 and 403: there are no keys and no origins here. 500 never."""
MAX_MESSAGE = 2000


class Fault(AssertionError):  # noqa: N818 - what it is to whoever reads the report
    """What the server said is not what it may say."""


def check(case: Case, reply: Reply) -> None:
    """Raises Fault."""
    if "x-request-id" not in reply.headers:
        raise Fault("no x-request-id")
    if reply.status >= 300:
        _check_error(case, reply)
    elif case.method in ("HEAD", "OPTIONS") or case.path == "/metrics":
        return
    elif reply.kind.startswith("text/event-stream"):
        _check_stream(case, reply)
    else:
        _json(reply.body)
        if reply.kind != "application/json":
            raise Fault(f"content type {reply.kind!r}")


def _check_error(case: Case, reply: Reply) -> None:
    if reply.status not in REFUSALS:
        raise Fault(f"status {reply.status}")
    if reply.status == 503 and "retry-after" not in reply.headers:
        raise Fault("503 without Retry-After")
    if reply.status == 405 and "allow" not in reply.headers:
        raise Fault("405 without Allow")
    if case.method == "HEAD":
        return
    if reply.kind != "application/json":
        raise Fault(f"an error of content type {reply.kind!r}")
    _check_error_object(_json(reply.body), anthropic=is_anthropic(case.path))


def _check_error_object(body: object, *, anthropic: bool) -> None:
    if not isinstance(body, dict) or not isinstance(body.get("error"), dict):
        raise Fault(f"no error object: {str(body)[:200]}")
    error = body["error"]
    expected = {"type", "message"} if anthropic else {"message", "type", "param", "code"}
    if set(error) != expected or (anthropic and body.get("type") != "error"):
        raise Fault(f"the error has {sorted(error)}")
    message = error["message"]
    if not isinstance(message, str) or not message or len(message) > MAX_MESSAGE or not message.isprintable():
        raise Fault(f"the message is {message!r}")


def _check_stream(case: Case, reply: Reply) -> None:
    text = reply.body.decode()  # whole characters: whatever the model says
    if not text.endswith("\n\n"):
        raise Fault("the stream does not end behind an event")
    events = [block for block in text.split("\n\n") if block and not block.startswith(":")]
    last = None
    for event in events:
        lines = event.split("\n")
        data = [line for line in lines if line.startswith("data: ")]
        if len(data) != 1 or any(not line.startswith(("data: ", "event: ")) for line in lines):
            raise Fault(f"an event that is none: {event[:200]!r}")
        last = data[0][6:]
        if last != "[DONE]":
            _json(last.encode())
    if last is None:
        raise Fault("a stream without events")
    if is_anthropic(case.path):
        good = '"message_stop"' in last
    elif case.path == "/v1/responses":
        good = any(
            name in last for name in ('"response.completed"', '"response.incomplete"', '"response.failed"')
        )
    else:
        good = last == "[DONE]"
    if not good and '"error"' not in last:
        raise Fault(f"the stream ends with {last[:200]!r}")


def _json(data: bytes) -> object:
    try:
        found: object = json.loads(data)
    except ValueError as error:
        raise Fault(f"not JSON ({error}): {data[:200]!r}") from None
    return found
