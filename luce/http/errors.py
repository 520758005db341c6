"""Errors as OpenAI's clients read them: ``{"error": {"message", "type", "param", "code"}}`` for every status.

Under the addresses of Anthropic's API (:func:`is_anthropic`) they are as its clients read them: ``{"type": "error",
"error": {"type", "message"}, "request_id"}``. The address alone decides, so every layer says the same: what comes
before the handler (401, 404, 405, 413, 415, 408), the handler, and the protocols below the framework, which call
:func:`error_content` with what they know of the address.

A stream that has begun cannot use :func:`error_response`: its error event holds :func:`error_body` on OpenAI's
addresses and :func:`anthropic_error` on Anthropic's.
"""

from __future__ import annotations

import logging
import math
from typing import Any

import msgspec
from quart import Quart, Response, has_request_context, request
from werkzeug.exceptions import HTTPException

from luce.errors import CapacityError, DeadlineError, LuceError, RequestError
from luce.http.request_log import record_of

__all__ = [
    "THREAD_UNSUPPORTED",
    "anthropic_error",
    "error_body",
    "error_content",
    "error_response",
    "error_status",
    "install_error_handlers",
    "is_anthropic",
    "retry_after",
]

log = logging.getLogger("luce.http")

_MESSAGES = {
    408: "the request body did not arrive in time",
    413: "the request body is larger than the server takes",
    415: "the body must be JSON (content-type: application/json)",
}

THREAD_UNSUPPORTED = "thread_unsupported_request"
"""Code of a request for a conversation that the server keeps. Anthropic's clients find it in an error's ``details``,
and go on by themselves without."""

_ANTHROPIC_PATH = "/v1/messages"
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def error_status(error: BaseException) -> int:
    """The status that an error is answered with."""
    if isinstance(error, RequestError):
        return error.status
    if isinstance(error, CapacityError):
        return 503
    if isinstance(error, DeadlineError):
        return 504
    if isinstance(error, HTTPException):
        return error.code or 500
    return 500


def error_body(error: BaseException) -> dict[str, Any]:
    """The JSON object of an error. An error that is a bug says nothing about its inside."""
    status = error_status(error)
    param = code = None
    if isinstance(error, RequestError):
        message, param, code = error.message, error.field, error.code
    elif isinstance(error, CapacityError):
        message, code = error.message, "overloaded"
    elif isinstance(error, DeadlineError):
        message, code = str(error), "timeout"
    elif isinstance(error, HTTPException):
        message = _MESSAGES.get(status) or error.description or error.name
    elif isinstance(error, LuceError):
        message = str(error)
    else:
        message = "the server failed on this request; its log says more"
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def anthropic_error(error: BaseException, request_id: str | None = None) -> dict[str, Any]:
    """The same as Anthropic's clients read it, in an answer or as the data of an ``error`` event."""
    status = error_status(error)
    kind = _ANTHROPIC_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    said = error_body(error)["error"]
    detail = {"type": kind, "message": said["message"]}
    if said["code"] == THREAD_UNSUPPORTED:
        detail["details"] = {"error_code": THREAD_UNSUPPORTED, "unsupported": [said["param"]]}
    body = {"type": "error", "error": detail}
    return body if request_id is None else body | {"request_id": request_id}


def is_anthropic(path: str) -> bool:
    """Is it an address of Anthropic's API? Whether or not anything is served there."""
    return path == _ANTHROPIC_PATH or path.startswith(f"{_ANTHROPIC_PATH}/")


def error_content(error: BaseException, path: str, request_id: str | None = None) -> bytes:
    """The body that says ``error`` to who asked at ``path``, as JSON."""
    body = anthropic_error(error, request_id) if is_anthropic(path) else error_body(error)
    return msgspec.json.encode(body)


def retry_after(error: CapacityError) -> str:
    """The value of the header: whole seconds."""
    return str(max(1, math.ceil(error.retry_after)))


def error_response(error: BaseException) -> Response:
    """The answer to the current request that says ``error``, in the shape of the API that it asked."""
    path, name = "", None
    if has_request_context():
        record = record_of(request._get_current_object())  # type: ignore[attr-defined]
        path, name = request.path, record.id
        said = error_body(error)["error"]
        record.code, record.param = said["code"], said["param"]
    response = Response(
        error_content(error, path, name), error_status(error), content_type="application/json"
    )
    if isinstance(error, CapacityError):
        response.headers["Retry-After"] = retry_after(error)
    if isinstance(error, DeadlineError):
        # OpenAI's clients ask again by themselves after a 5xx, and the limit would cut them off again.
        response.headers["x-should-retry"] = "false"
    if isinstance(error, HTTPException):
        for name, value in error.get_headers():
            if name.lower() not in ("content-type", "content-length"):
                response.headers[name] = value
    return response


def install_error_handlers(app: Quart) -> None:
    """Answer every error with a JSON object, the framework's own ones too."""

    async def expected(error: Exception) -> Response:
        return error_response(error)

    async def failed(error: Exception) -> Response:
        log.error(
            "a request failed: %s", type(error).__name__, exc_info=error
        )  # a bug's text may quote anything
        return error_response(error)

    app.register_error_handler(HTTPException, expected)
    app.register_error_handler(RequestError, expected)
    app.register_error_handler(CapacityError, expected)
    app.register_error_handler(DeadlineError, expected)
    app.register_error_handler(LuceError, failed)
    app.register_error_handler(Exception, failed)
