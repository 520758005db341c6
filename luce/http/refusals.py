"""Refusals below the framework: JSON errors for what never becomes a request that an application sees."""

from __future__ import annotations

import uuid

import attrs

from luce.errors import CapacityError, RequestError
from luce.http.errors import error_content, error_status, retry_after

__all__ = ["MAX_FIELDS", "MAX_HEAD_BYTES", "Refusal", "check_head", "origin_form", "refusal", "too_long"]

MAX_HEAD_BYTES = 16 * 1024
"""Of a request's line and headers; of its header list as HTTP/2 counts it, 32 more for each field."""
MAX_FIELDS = 128
"""Headers of one request."""


@attrs.frozen
class Refusal:
    """An answer without an application."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes


def refusal(error: Exception, path: str = "") -> Refusal:
    """The answer that says ``error`` to who asked at ``path``, as far as that is known."""
    name = uuid.uuid4().hex
    body = error_content(error, path, name)
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (b"x-request-id", name.encode()),
    ]
    if isinstance(error, CapacityError):
        headers.append((b"retry-after", retry_after(error).encode()))
    return Refusal(error_status(error), tuple(headers), body)


def check_head(target: bytes, fields: int, size: int) -> RequestError | None:
    """What is wrong with a request's head, whichever protocol it came by.

    Args:
        size: bytes of all of it.
    """
    if size > MAX_HEAD_BYTES:
        return too_long(str(size))
    if fields > MAX_FIELDS:
        return RequestError(f"the request has {fields} headers; {MAX_FIELDS} are taken", status=431)
    if not target.isascii() or not target.decode("ascii").isprintable() or b" " in target:
        return RequestError("the request's target holds characters that no URL has; percent-encode them")
    return None


def too_long(size: str) -> RequestError:
    return RequestError(
        f"the request's line and headers have {size} bytes; {MAX_HEAD_BYTES} are taken", status=431
    )


def origin_form(target: bytes) -> bytes:
    """The target without scheme and host, which every server must take (RFC 9112 §3.2.2)."""
    scheme, found, rest = target.partition(b"://")
    if not found or scheme.lower() not in (b"http", b"https"):
        return target
    cut = min((at for at in (rest.find(b"/"), rest.find(b"?")) if at >= 0), default=len(rest))
    return rest[cut:] if rest[cut : cut + 1] == b"/" else b"/" + rest[cut:]
