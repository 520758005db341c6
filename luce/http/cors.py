"""Cross-origin requests: which web pages may ask from a browser. None unless the operator names them.

Only the origin decides. Cookies and other credentials that a browser keeps are never invited
(``Access-Control-Allow-Credentials`` is not sent): a page that needs an API key sends it as a header.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from quart import Quart, Response, request

from luce.errors import RequestError, quoted
from luce.http.errors import error_response

__all__ = ["ANY_ORIGIN", "install_cors"]

ANY_ORIGIN = "*"
EXPOSED = "retry-after, x-luce-seed, x-request-id"
"""Headers of answers that a page may read."""
METHODS = "DELETE, GET, POST"
MAX_AGE = "600"
"""Seconds for which a browser may keep the answer to its question."""

_HEADER_NAMES = re.compile(r"[\w!#$%&'*+.^`|~-]+(\s*,\s*[\w!#$%&'*+.^`|~-]+)*", re.ASCII)
MAX_NAMES = 2048


def install_cors(app: Quart, origins: Collection[str]) -> None:
    """Let pages of ``origins`` (as browsers write them, or :data:`ANY_ORIGIN`) ask and read answers, errors too.

    A preflight is answered before keys are asked for, because browsers send none with it. Without origins nothing is
    said about any, so that browsers let no page read anything.
    """
    if not origins:
        return
    anyone = ANY_ORIGIN in origins

    def allowed(origin: str) -> bool:
        return anyone or origin in origins

    @app.before_request
    async def preflight() -> Response | None:
        origin = request.headers.get("Origin")
        if (
            request.method != "OPTIONS"
            or origin is None
            or "Access-Control-Request-Method" not in request.headers
        ):
            return None
        if not allowed(origin):
            return error_response(
                RequestError(
                    f"origin: pages of {quoted(origin)} may not ask this server (--cors-origin)",
                    field="origin",
                    status=403,
                )
            )
        response = Response(b"", 204)
        for name in ("Content-Length", "Content-Type"):  # an answer of 204 has no body to speak of
            response.headers.pop(name, None)
        response.headers["Access-Control-Allow-Methods"] = METHODS
        names = request.headers.get("Access-Control-Request-Headers", "")
        if len(names) <= MAX_NAMES and _HEADER_NAMES.fullmatch(names):
            response.headers["Access-Control-Allow-Headers"] = names
        response.headers["Access-Control-Max-Age"] = MAX_AGE
        return response

    @app.after_request
    async def allow(response: Any) -> Any:
        if not anyone:
            response.headers.add("Vary", "Origin")
        origin = request.headers.get("Origin")
        if origin is not None and allowed(origin):
            response.headers["Access-Control-Allow-Origin"] = ANY_ORIGIN if anyone else origin
            response.headers["Access-Control-Expose-Headers"] = EXPOSED
        return response
