"""Addresses of the page."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import trio
from quart import Quart, Response, request

from luce.actors.service import Service
from luce.errors import CapacityError, RequestError, TraceFileError, quoted
from luce.http.asgi import held_body
from luce.http.options import HttpOptions
from luce.http.slots import Slots
from luce.http.sse import event_response
from luce.http.ui.files import page_file
from luce.http.ui.live import LiveEvents
from luce.http.ui.saved import SavedEvents

__all__ = ["MOST_PAGES", "install_page"]

MOST_PAGES = 16
"""Streams of events at once: each costs the server a little."""
MOST_SAVED = 4
"""Of them, saved traces: each holds a frame of its file, and what it says, in memory."""


def install_page(
    app: Quart, service: Service, slots: Slots, names: Callable[[], Mapping[str, str]], options: HttpOptions
) -> None:
    """``names``: request ids by ids of answers."""
    pages = _Pages(options.keep_alive)

    @app.get("/ui", strict_slashes=False)
    async def page() -> Response:
        return page_file("index.html")

    @app.get("/ui/static/<path:name>")
    async def static_file(name: str) -> Response:
        return page_file(name)

    @app.get("/ui/events")
    async def events() -> Response:
        """The running server's events, as ``luce/http/ui/wire.py`` says, until the page goes."""
        pages.enter()
        source = LiveEvents(service, slots, names)
        return pages.response(source, source.close)

    @app.post("/ui/trace")
    async def saved_trace() -> Response:
        """The events of the trace file in the body."""
        skip = _count(request.args.get("skip", "0"))
        body = await held_body(request._get_current_object()).whole(options.body_timeout)  # type: ignore[attr-defined]
        pages.enter(saved=True)
        path: Path | None = None
        try:
            path = await trio.to_thread.run_sync(_stored, body)
            source = await trio.to_thread.run_sync(SavedEvents, path, skip)
        except BaseException as error:
            pages.leave(saved=True)
            _forget(path)
            if isinstance(error, TraceFileError):
                raise RequestError(f"the file is no trace that can be shown: {error}", field="body") from None
            raise
        return pages.response(source, lambda: _forget(path), saved=True)


class _Pages:
    """How many streams of events there are."""

    def __init__(self, keep_alive: float) -> None:
        self._keep_alive = keep_alive
        self._open = self._saved = 0

    def enter(self, *, saved: bool = False) -> None:
        if self._open >= MOST_PAGES:
            raise CapacityError(f"{MOST_PAGES} pages are open already; close one", retry_after=5)
        if saved and self._saved >= MOST_SAVED:
            raise CapacityError(
                f"{MOST_SAVED} saved traces are being read already; open it again", retry_after=5
            )
        self._open += 1
        self._saved += saved

    def leave(self, *, saved: bool = False) -> None:
        self._open -= 1
        self._saved -= saved

    def response(
        self, source: LiveEvents | SavedEvents, close: Callable[[], None], *, saved: bool = False
    ) -> Response:
        def gone() -> None:
            self.leave(saved=saved)
            close()

        response = event_response(source, self._keep_alive, close=gone)
        response.headers["Cache-Control"] = "no-store"
        return response


def _count(given: str) -> int:
    if not (given.isascii() and given.isdigit() and len(given) < 13):
        raise RequestError(f"skip must be a number of records, not {quoted(given)}", field="skip")
    return int(given)


def _stored(body: bytes | bytearray) -> Path:
    descriptor, name = tempfile.mkstemp(suffix=".ltrace")
    with os.fdopen(descriptor, "wb") as file:
        file.write(body)
    return Path(name)


def _forget(path: Path | None) -> None:
    if path is not None:
        with suppress(OSError):
            path.unlink()
