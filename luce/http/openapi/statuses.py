"""What a status means here, and which of them an operation can have."""

from __future__ import annotations

from typing import Any

from luce.http.openapi.operation import Operation

__all__ = ["HEADERS", "MEANINGS", "statuses_of"]

MEANINGS = {
    400: "The body is not JSON, a field or a query parameter is wrong or not served, or the prompt is too long",
    401: "Keys are set and the request shows none of them",
    404: "Nothing of this name is here",
    408: "The request did not arrive in time",
    413: "The body is too large",
    415: "The body is not JSON in UTF-8, or it is compressed",
    417: "An expectation other than 100-continue",
    431: "The request's line and headers are too large",
    499: "The answer was cancelled by its id",
    500: "The server failed on this request",
    503: "There is no room now, or the server is starting or stopping",
    504: "The answer was not complete within its time limit",
}

_EVERYWHERE = (400, 401, 408, 417, 431, 500, 503)
"""400 for query parameters, 503 for connections that are too many."""
_WITH_BODY = (404, 413, 415)
"""404 is for the model's name."""
_GENERATING = (499, 504)


def _header(description: str, kind: str = "string") -> dict[str, Any]:
    return {"description": description, "schema": {"type": kind}}


HEADERS = {
    "RequestId": _header(
        "The caller's `x-request-id`, if it sent one of 1 to 128 visible ASCII characters, or drawn"
    ),
    "RetryAfter": _header("Seconds after which to come again", "integer"),
    "Seed": _header("The seed of the answer: the same request with it gives the same answer"),
    "Authenticate": _header("How a key is shown"),
    "ShouldRetry": _header("`false`: OpenAI's clients do not ask again by themselves"),
}


def statuses_of(operation: Operation) -> list[int]:
    """Statuses of an operation's errors, in order."""
    found = {*_EVERYWHERE, *operation.statuses}
    if operation.request is not None:
        found |= {*_WITH_BODY}
    if operation.generates:
        found |= {*_GENERATING}
    if operation.probe:
        found.remove(401)
    return sorted(found)
