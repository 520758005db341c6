"""A TCP connection that tells when the system had what is read, however late this process came to read it.

A busy process reads late: its server would count a request from when it looked, its client a token to when it looked.
The system's stamps (SO_TIMESTAMPNS) are on the bytes themselves.
"""

from __future__ import annotations

import errno
import socket
import struct
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

import trio

__all__ = ["StampedStream", "ask_for_stamps"]

OPTION: Final = getattr(socket, "SO_TIMESTAMPNS", 35)
"""Of Linux; the socket module does not name it in every version."""
STAMP: Final = struct.Struct("@ll")
"""Seconds and nanoseconds of the wall clock."""
ROOM: Final = socket.CMSG_SPACE(STAMP.size)
MOST_AGE: Final = 60.0
"""Seconds: bytes that seem to have waited longer were there when somebody set the wall clock."""
PIECE: Final = 1 << 16


def ask_for_stamps(sock: socket.socket | trio.socket.SocketType) -> None:
    """Stamps on what comes from now on; sockets that a listening one accepts have them from their first byte. Where the
    system has none, bytes count as there when they are read."""
    with suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, OPTION, 1)


class StampedStream(trio.abc.HalfCloseableStream):
    """Args:
    tcp: the connection, owned from now on; :func:`ask_for_stamps` was called for it or for its listener.
    """

    def __init__(self, tcp: trio.SocketStream) -> None:
        self._tcp: Final = tcp
        self.socket: Final = tcp.socket
        self.received: float = trio.current_time()
        """When the system had the last byte of what was read last, on trio's clock; the end of a stream counts, too."""

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        try:
            data, beside, _, _ = await self.socket.recvmsg(max_bytes or PIECE, ROOM)
        except OSError as error:
            if error.errno in (errno.EBADF, errno.ENOTSOCK):
                raise trio.ClosedResourceError("this socket was already closed") from None
            raise trio.BrokenResourceError(f"socket connection broken: {error}") from error
        self.received = trio.current_time() - _age(beside)
        return data

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._tcp.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._tcp.wait_send_all_might_not_block()

    async def send_eof(self) -> None:
        await self._tcp.send_eof()

    async def aclose(self) -> None:
        await self._tcp.aclose()


def _age(beside: Iterable[tuple[int, int, bytes]]) -> float:
    """Seconds since the stamp; 0 without one, and for one that cannot be."""
    for level, kind, content in beside:
        if level == socket.SOL_SOCKET and kind == OPTION and len(content) == STAMP.size:
            seconds, nanoseconds = STAMP.unpack(content)
            age = time.time() - (seconds + nanoseconds / 1e9)
            return age if 0.0 <= age <= MOST_AGE else 0.0
    return 0.0
