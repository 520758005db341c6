"""What waits to be sent on one stream of an HTTP/2 connection: bounded in memory, and in time without progress."""

from __future__ import annotations

from collections.abc import Callable

import trio

__all__ = ["HIGH_WATER", "Outgoing"]

HIGH_WATER = 32 * 1024
"""Bytes that wait before whoever produces them does."""


class Outgoing:
    """The bytes of one answer that the client has granted no window for, or that the connection has not come to yet."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.ended = False
        """Nothing comes behind ``data``."""
        self.gone = False
        """The stream is over, sent or not; whatever comes is dropped."""
        self._moved = trio.Event()

    def take(self, most: int) -> bytes:
        """The next bytes to send."""
        piece = bytes(self.data[:most])
        del self.data[:most]
        if piece:
            self._wake()
        return piece

    def close(self) -> None:
        self.gone = True
        self.data.clear()
        self._wake()

    def _wake(self) -> None:
        moved, self._moved = self._moved, trio.Event()
        moved.set()

    async def room(self, seconds: float) -> bool:
        """Wait until more may be put. False: nothing was taken for so many seconds."""
        return await self._until(lambda: len(self.data) < HIGH_WATER, seconds)

    async def over(self, seconds: float) -> bool:
        """Wait until all is sent. False as of :meth:`room`."""
        return await self._until(lambda: False, seconds)

    async def _until(self, enough: Callable[[], bool], seconds: float) -> bool:
        while not (self.gone or enough()):
            with trio.move_on_after(seconds) as patience:
                await self._moved.wait()
            if patience.cancelled_caught:
                return False
        return True
