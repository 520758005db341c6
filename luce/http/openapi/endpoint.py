"""GET /openapi.json."""

from __future__ import annotations

import functools

from quart import Response

from luce.http.openapi.document import encoded

__all__ = ["read_document"]

_encoded = functools.lru_cache(maxsize=1)(encoded)


async def read_document() -> Response:
    """The document, which is the same for every server of this version."""
    return Response(_encoded(), content_type="application/json")
