"""Sends at the right moment, from a thread of its own: however busy the loop is with reading answers, and it may have
hundreds of pieces to take up at once, no arrival waits for it."""

from __future__ import annotations

import heapq
import itertools
import os
import socket
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import attrs
import trio

__all__ = ["Metronome", "metronome"]


@attrs.define(eq=False)
class _Beat:
    """One sending."""

    where: socket.socket
    """Another handle of a connection, which does not block."""
    data: bytes
    done: trio.Event
    when: float = 0.0
    """On trio's clock, once it is done."""
    sent: int = 0
    error: OSError | None = None


class Metronome:
    """Made by :func:`metronome`."""

    def __init__(self, token: trio.lowlevel.TrioToken, offset: float) -> None:
        self._token: Final = token
        self._offset: Final = offset
        """Of trio's clock to that of the thread."""
        self._beats: list[tuple[float, int, _Beat]] = []
        """A heap by time. Two threads know it, under…"""
        self._news: Final = threading.Condition()
        self._count: Final = itertools.count()
        self._over = False

    async def send(self, where: int, data: bytes, at: float) -> tuple[float, int]:
        """Send ``data`` at a time of trio's clock: when that was, and how many bytes were taken at once.

        A cancel has to wait for it: the thread knows nothing of cancels.

        Args:
            where: descriptor of a connected socket that does not block.

        Raises:
            OSError: as ``send`` does.
        """
        beat = _Beat(socket.socket(fileno=os.dup(where)), data, trio.Event())
        with self._news:
            heapq.heappush(self._beats, (at - self._offset, next(self._count), beat))
            self._news.notify()
        with trio.CancelScope(shield=True):
            await beat.done.wait()
        if beat.error is not None:
            raise beat.error
        return beat.when, beat.sent

    def run(self) -> None:
        """What the thread does, until :meth:`end`."""
        while (beat := self._due()) is not None:
            beat.when = time.perf_counter() + self._offset
            try:
                beat.sent = beat.where.send(beat.data)
            except BlockingIOError:
                beat.sent = 0
            except OSError as error:
                beat.error = error
            beat.where.close()
            self._token.run_sync_soon(beat.done.set)

    def end(self) -> None:
        """Nobody sends any more."""
        with self._news:
            self._over = True
            self._news.notify()

    def _due(self) -> _Beat | None:
        """The next one, at its time; None at the end."""
        with self._news:
            while not self._over:
                left = self._beats[0][0] - time.perf_counter() if self._beats else None
                if left is not None and left <= 0:
                    return heapq.heappop(self._beats)[2]
                self._news.wait(left)
        return None


@asynccontextmanager
async def metronome() -> AsyncIterator[Metronome]:
    """A thread that sends while the block runs; everybody who sends is inside it."""
    made = Metronome(trio.lowlevel.current_trio_token(), trio.current_time() - time.perf_counter())
    thread = threading.Thread(target=made.run, name="arrivals", daemon=True)
    thread.start()
    try:
        yield made
    finally:
        made.end()
        thread.join()
