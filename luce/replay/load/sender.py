"""The process that sends, and does nothing else: neither the interpreter's lock nor its collector keep an arrival.

``python -m luce.replay.load.sender`` with one end of a pair of SOCK_SEQPACKET sockets as its standard input. Every
order has two descriptors, the connection and a file in memory with the bytes. It says :data:`READY` when it listens.
"""

from __future__ import annotations

import errno
import gc
import heapq
import os
import select
import socket
import struct
import time
from contextlib import suppress

__all__ = ["ORDER", "READY", "REPORT", "now"]

ORDER = struct.Struct("=QdQ")
"""Number, when on the clock of :func:`now`, bytes."""
REPORT = struct.Struct("=QdQi")
"""Number, when it was sent, bytes that were taken at once, errno or 0."""
READY = b"ready"

_Order = tuple[float, int, int, int, int]
"""When, number, connection, file, bytes."""


def now() -> float:
    """Seconds on the machine's monotonic clock, which all processes share."""
    return time.clock_gettime(time.CLOCK_MONOTONIC)


def main(control: socket.socket) -> None:
    """Until the other end is closed."""
    orders: list[_Order] = []
    control.send(READY)
    while True:
        left = orders[0][0] - now() if orders else None
        if left is not None and left <= 0:
            control.send(_sent(heapq.heappop(orders)))
        elif select.select([control], [], [], left)[0]:
            message, descriptors, _, _ = socket.recv_fds(control, ORDER.size, 2)
            if not message:
                return
            number, at, size = ORDER.unpack(message)
            if len(descriptors) < 2:  # the system gave what it had
                for one in descriptors:
                    os.close(one)
                control.send(REPORT.pack(number, now(), 0, errno.EMFILE))
                continue
            connection, content = descriptors
            heapq.heappush(orders, (at, number, connection, content, size))


def _sent(order: _Order) -> bytes:
    _, number, connection, content, size = order
    when, taken, error = now(), 0, 0
    try:
        taken = os.sendfile(connection, content, 0, size)
    except OSError as failed:
        error = 0 if failed.errno == errno.EAGAIN else failed.errno or errno.EIO
    os.close(connection)
    os.close(content)
    return REPORT.pack(number, when, taken, error)


if __name__ == "__main__":
    gc.disable()
    with suppress(
        OSError
    ):  # where it may, it goes before everybody else, its parent too: it sleeps nearly always
        parents = os.sched_getparam(0).sched_priority
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(parents + 1))
    with suppress(ConnectionError):  # nobody is there to be told
        main(socket.socket(fileno=0))
