"""What came over HTTP, counted when it is over: by method, address as this server writes it, and kind of status."""

from __future__ import annotations

from collections import Counter

from quart import Request

from luce.actors.histogram import Histogram
from luce.http.request_log import RequestRecord
from luce.http.route_names import address

__all__ = ["HttpTallies"]

METHODS = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"})
"""Any other one counts as 'other', and any address that is not there as 'none': nobody may make up series."""
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class HttpTallies:
    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str, str]] = Counter()
        """By method, address and status: '2xx' and so on, 'none' where the client left before it was sent."""
        self.seconds: dict[tuple[str, str], Histogram] = {}
        """From the request's head to the end of its answer, by method and address."""

    def count(self, request: Request, record: RequestRecord, now: float) -> None:
        method = request.method if request.method in METHODS else "other"
        handler = "none" if request.url_rule is None else address(request.url_rule.rule)
        status = "none" if record.status is None else f"{record.status // 100}xx"
        self.requests[method, handler, status] += 1
        times = self.seconds.get((method, handler))
        if times is None:
            times = self.seconds[method, handler] = Histogram(SECONDS)
        times.add(now - record.started)
