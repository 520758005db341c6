"""Sends at the right moment, by a process of its own: however busy this one is with making prompts and reading answers,
and it may have hundreds of pieces to take up at once, no arrival waits for it."""

from __future__ import annotations

import errno
import itertools
import math
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Final

import attrs
import trio

from luce.errors import DeviceError
from luce.replay.load.sender import ORDER, READY, REPORT, now
from luce.stamped_stream import StampedStream, ask_for_stamps

__all__ = ["Metronome", "Punctual", "metronome"]

GONE = "the process that sends the requests has come to its end"


@attrs.define(eq=False)
class _Beat:
    """One sending."""

    where: int
    """Another descriptor of the connection, so that its owner may close his."""
    data: bytes
    at: float
    """On the sender's clock, as ``when``."""
    done: trio.Event = attrs.field(factory=trio.Event)
    when: float = 0.0
    sent: int = 0
    """Bytes that were taken at once."""
    error: int = 0


class Metronome:
    """Made by :func:`metronome`."""

    def __init__(self, control: trio.socket.SocketType) -> None:
        self._control: Final = control
        self._offset: Final = trio.current_time() - now()
        """Of trio's clock to that of the sender."""
        self._numbers: Final = itertools.count()
        self._orders, self._ordered = trio.open_memory_channel[_Beat](math.inf)
        self._beats: dict[int, _Beat] = {}
        """With the sender, by number."""

    async def send(self, where: int, data: bytes, at: float) -> tuple[float, int]:
        """Send ``data`` at a time of trio's clock: when that was, and how many bytes were taken at once.

        After a cancel it is still sent, unless the metronome ends before its time.

        Args:
            where: descriptor of a connected socket that does not block.

        Raises:
            OSError: as ``send`` does; or the sender has come to its end.
        """
        beat = _Beat(os.dup(where), data, at - self._offset)
        self._orders.send_nowait(beat)
        await beat.done.wait()
        if beat.error:
            raise OSError(beat.error, GONE if beat.error == errno.ESRCH else os.strerror(beat.error))
        return beat.when + self._offset, beat.sent

    async def begun(self) -> None:
        """Wait until the sender listens.

        Raises:
            DeviceError: it has come to its end.
        """
        if await self._heard(len(READY)) != READY:
            raise DeviceError(GONE)

    async def order(self) -> None:
        """Hand on what is to be sent, for ever."""
        async for beat in self._ordered:
            number = next(self._numbers)
            self._beats[number] = beat
            try:
                await self._hand_on(number, beat)
            except ConnectionError:
                self._fail_all()
            except OSError as error:  # no descriptor is left
                self._fail(number, error.errno or errno.EIO)

    async def _hand_on(self, number: int, beat: _Beat) -> None:
        content = None
        try:
            content = _in_memory(beat.data)
            order = ORDER.pack(number, beat.at, len(beat.data))
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, _ints(beat.where, content))
            await self._control.sendmsg([order], [rights])
        finally:
            os.close(beat.where)
            if content is not None:
                os.close(content)

    def end(self) -> None:
        """Forget what was not handed on."""
        with suppress(trio.WouldBlock):
            while True:
                os.close(self._ordered.receive_nowait().where)

    async def hear(self) -> None:
        """Take what the sender says, until it comes to its end."""
        while report := await self._heard(REPORT.size):
            number, when, sent, error = REPORT.unpack(report)
            if (beat := self._beats.pop(number, None)) is not None:
                beat.when, beat.sent, beat.error = when, sent, error
                beat.done.set()
        self._fail_all()

    async def _heard(self, size: int) -> bytes:
        try:
            return await self._control.recv(size)
        except ConnectionError:  # there were orders that it had not read
            return b""

    def _fail_all(self) -> None:
        for number in list(self._beats):
            self._fail(number, errno.ESRCH)

    def _fail(self, number: int, error: int) -> None:
        beat = self._beats.pop(number)
        beat.error = error
        beat.done.set()


def _in_memory(data: bytes) -> int:
    """A file with ``data``. Raises OSError: there is no descriptor left."""
    descriptor = os.memfd_create("request")
    with open(descriptor, "wb", closefd=False) as file:
        file.write(data)
    return descriptor


def _ints(*values: int) -> bytes:
    return b"".join(value.to_bytes(4, sys.byteorder) for value in values)


@asynccontextmanager
async def metronome() -> AsyncIterator[Metronome]:
    """A process that sends while the block runs; everybody who sends is inside it.

    Raises:
        DeviceError: it could not be started.
    """
    mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-P", "-m", "luce.replay.load.sender"]
    with mine:
        with its:
            # A session of its own: Ctrl-C at a terminal is for this process.
            process = await trio.lowlevel.open_process(command, stdin=its, start_new_session=True)
        made = Metronome(trio.socket.from_stdlib_socket(mine))
        try:
            await made.begun()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(made.order)
                nursery.start_soon(made.hear)
                yield made
                nursery.cancel_scope.cancel()
        finally:
            made.end()
            mine.close()
            with trio.CancelScope(shield=True):
                await process.wait()


class Punctual(trio.abc.Stream):
    """A connection on which what is sent next can be held until its time, TLS above it or not."""

    def __init__(self, tcp: trio.SocketStream, beat: Metronome) -> None:
        ask_for_stamps(tcp.socket)
        self._tcp: Final = StampedStream(tcp)
        self._beat: Final = beat
        self._held: tuple[float, Callable[[float], None]] | None = None

    @property
    def received(self) -> float:
        """When the system had what was read last, on trio's clock."""
        return self._tcp.received

    def hold(self, until: float, told: Callable[[float], None]) -> None:
        """What is sent next goes at this time of trio's clock, and ``told`` gets the time when it went."""
        self._held = until, told

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        if self._held is None:
            await self._tcp.send_all(data)
            return
        (at, told), self._held = self._held, None
        when, taken = await self._beat.send(self._tcp.socket.fileno(), bytes(data), at)
        told(when)
        await self._tcp.send_all(memoryview(data)[taken:])

    async def wait_send_all_might_not_block(self) -> None:
        await self._tcp.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        return await self._tcp.receive_some(max_bytes)

    async def aclose(self) -> None:
        await self._tcp.aclose()
