"""Which clients have hung up: one epoll for all connections, so that each takes one descriptor.

Reading a socket tells that its client is gone only while somebody reads. A connection whose answer is being computed
does not read on when bytes follow the request, so every socket is watched here as well.
"""

from __future__ import annotations

import select
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import trio

__all__ = ["HangUps"]


class HangUps:
    """Sockets that are watched, by descriptor. The trio thread owns it; :meth:`run` must be running.

    Where the system has no epoll nothing is ever told: reading and writing still notice.
    """

    def __init__(self) -> None:
        make: Any = getattr(select, "epoll", None)
        self._epoll = None if make is None else make()
        self._watched: dict[int, trio.Event] = {}

    @contextmanager
    def watching(self, fd: int) -> Iterator[trio.Event]:
        """An event that is set when the other side of ``fd`` has closed, or shut its sending side.

        ``fd`` may be closed, and its number be another's, before the context is left: the epoll has forgotten it then.
        """
        gone = trio.Event()
        if self._epoll is None or fd < 0:
            yield gone
            return
        self._watched[fd] = gone
        self._epoll.register(fd, select.EPOLLRDHUP | select.EPOLLONESHOT)
        try:
            yield gone
        finally:
            if self._watched.get(fd) is gone:
                del self._watched[fd]
                with suppress(OSError):
                    self._epoll.unregister(fd)

    async def run(self) -> None:
        """Tell, until cancelled; then the epoll is closed."""
        if self._epoll is None:
            return
        with self._epoll:
            while True:
                await trio.lowlevel.wait_readable(self._epoll.fileno())
                for fd, _ in self._epoll.poll(0):
                    if fd in self._watched:
                        self._watched[fd].set()
