"""Reading request bodies."""

from __future__ import annotations

from quart import Request
from werkzeug.exceptions import UnsupportedMediaType

from luce.errors import RequestError, quoted
from luce.http.asgi import held_body

__all__ = ["read_json_body"]


async def read_json_body(request: Request, seconds: float) -> bytearray:
    """The body's bytes, once it is clear that they may be JSON. They are held until the request's body is released.

    A missing content type is taken for JSON, as every client of this API means it.

    Args:
        seconds: how long it may take to arrive.

    Raises:
        HTTPException: 413 for a body over the limit, 408 when it does not arrive, 415 for another content type.
        CapacityError: the bodies of all requests take too much memory.
        RequestError: the body is in another character set or compressed (415), or empty.
    """
    kind = request.mimetype
    if kind and kind != "application/json" and not kind.endswith("+json"):
        raise UnsupportedMediaType
    given = request.headers.get("Content-Type", "")
    unread = given if "charset" in given.lower() else "utf-8"  # a charset that the framework cannot parse
    charset = request.mimetype_params.get("charset", unread)
    if charset.lower() not in ("utf-8", "utf8"):
        raise RequestError(
            f"content-type: the charset {quoted(charset)} is not taken; JSON is sent in UTF-8",
            field="content-type",
            status=415,
        )
    encoding = request.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise RequestError(
            f"content-encoding {quoted(encoding)} is not taken; send the body as it is",
            field="content-encoding",
            status=415,
        )
    body = await held_body(request).whole(seconds)
    if not body:
        raise RequestError("the body is empty; it must be a JSON object")
    return body
