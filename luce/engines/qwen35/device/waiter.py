"""The thread that waits for the device, so that neither the engine thread nor the event loop has to (design §4)."""

from __future__ import annotations

import threading
import time
from queue import SimpleQueue

from luce.engines.qwen35.device.buffers import ResultRing
from luce.engines.qwen35.device.results import DeviceTicket
from luce.errors import DeviceError

__all__ = ["Waiter"]


class Waiter:
    """Takes launched tickets in order, sleeps until the device is past each, reads its results and says so."""

    def __init__(self, results: ResultRing) -> None:
        self._results = results
        self._queue: SimpleQueue[DeviceTicket | None] = SimpleQueue()
        self._last_end = 0.0
        self._thread = threading.Thread(target=self._serve, name="luce-waiter", daemon=True)
        self._thread.start()

    def put(self, ticket: DeviceTicket) -> None:
        """``ticket`` is launched, or has its ``error`` already."""
        self._queue.put(ticket)

    def stop(self) -> None:
        """Finish the tickets put so far, then end the thread."""
        self._queue.put(None)
        self._thread.join()

    def _serve(self) -> None:
        while (ticket := self._queue.get()) is not None:
            try:
                self._finish(ticket)
            except Exception as error:
                ticket.error = DeviceError(f"step {ticket.number} failed: {type(error).__name__}: {error}")
                ticket.error.__cause__ = error
                for work in ticket.works:
                    work.slot.failed = str(ticket.error)
            ended = time.perf_counter()
            if (
                not ticket.seconds
            ):  # the device has no clock: since the launch, or since the step before it ended
                ticket.seconds = ended - max(ticket.started, self._last_end)
            self._last_end = ended
            ticket.finish()

    def _finish(self, ticket: DeviceTicket) -> None:
        if ticket.events is not None:
            before, behind = ticket.events
            behind.synchronize()
            ticket.seconds = behind.seconds_since(before)
        if ticket.error is None:
            ticket.read()
        for part in ticket.passes:
            self._results.give_back(part.results)
