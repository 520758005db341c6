"""Cancelling by id: which answers run, under which names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
from quart import Response

from luce.actors.submission import Handle
from luce.errors import RequestError, quoted
from luce.http.request_log import RequestRecord

__all__ = ["cancel", "request_ids"]


def request_ids(records: Iterable[RequestRecord]) -> dict[str, str]:
    """The ``x-request-id`` of every answer that runs, by the answer's id."""
    return {handle.id: record.id for record in records for handle in record.handles}


def cancel(name: str, records: Iterable[RequestRecord]) -> Response:
    """Cancel what runs under this name: an answer's id, or the ``x-request-id`` of whoever asked.

    A request is known by then, that is when its prompt is prepared, and until its answer has ended.

    Raises:
        RequestError: 404, nothing of that name runs.
    """
    found = list(_named(name, records))
    for handle in found:
        handle.cancel()
    if not found:
        raise RequestError(
            f"id: no request {quoted(name)} is running; ids are those of answers (chatcmpl-…) and x-request-id",
            field="id",
            status=404,
            code="request_not_found",
        )
    ids = [handle.id for handle in found]
    body = {"id": name, "object": "request.cancelled", "cancelled": ids}
    return Response(msgspec.json.encode(body), content_type="application/json")


def _named(name: str, records: Iterable[RequestRecord]) -> Iterator[Handle]:
    """All that runs for a request goes with the one that is named."""
    for record in records:
        if name == record.id or any(name == handle.id for handle in record.handles):
            yield from (handle for handle in record.handles if handle.end is None)
