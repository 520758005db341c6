"""Copies between device and host memory while steps go on: through pinned buffers, with threads on the host's side.

What is done on the host, out of a pinned buffer into memory of its own or the other way round, threads do: behind
copies that come, ahead of those that go. What comes is launched by a thread too, which waits for a buffer where all are
in use, so that no step has to: the engine thread has packed it on the device by then, and goes on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from queue import SimpleQueue
from threading import Lock
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt

from luce.compute.device import Device, Event

__all__ = ["BUFFERS", "Buffer", "Staged", "Staging"]

Host = npt.NDArray[Any]
Buffer = dict[str, Host]
"""Pinned arrays by name."""
Part = Callable[[Buffer, int, int], None]
"""What is done with a buffer on the host: part ``number`` of ``count``, on a thread of its own."""

BUFFERS = 4
"""Copies on the bus and in work on the host at once; one more waits for a buffer."""
THREADS = 4
"""Finish one copy together: memory that is touched for the first time takes longer than the bus."""


@attrs.frozen(eq=False)
class Staged:
    """Until a copy is whole."""

    _parts: Sequence[Future[None]] = ()
    _start: Callable[[], None] = lambda: None
    """Has it begun, if it was held until now."""

    def wait(self) -> None:
        """Raises what went wrong."""
        self._start()
        for part in self._parts:
            part.result()


class _Pools:
    """Threads. Those of copies that come may wait for a launch, which waits for a buffer: so they are none of those
    that give buffers back."""

    def __init__(self) -> None:
        self.bus = ThreadPoolExecutor(1, "luce-bus")
        """Launches copies that come, in order."""
        self.coming = ThreadPoolExecutor(2 * THREADS, "luce-staging")
        """Of two copies at once: more would take the memory's time and the interpreter's lock from others."""
        self.going = ThreadPoolExecutor(BUFFERS + THREADS, "luce-sending")


class Staging:
    """Args:
    arrays: shape and dtype of each array of a buffer, by name.
    """

    def __init__(self, device: Device, arrays: dict[str, tuple[tuple[int, ...], str]]) -> None:
        self._device, self._arrays = device, arrays
        self._free: SimpleQueue[Buffer] = SimpleQueue()
        self._made, self._making = 0, Lock()
        self._pools: _Pools | None = None
        self._holding = False
        self._held: deque[Callable[[], None]] = deque()

    def prepare(self) -> None:
        """Make all buffers, which would hold up the first copies."""
        while self._made < BUFFERS:
            self._free.put(self._buffer())

    def bring(self, launch: Callable[[Buffer], Event], finish: Part, there: Callable[[], None]) -> Staged:
        """From the device; returns at once.

        Args:
            launch: launches copies into the buffer, on a thread of its own; the event stands behind them.
            finish: takes out of the buffer what is wanted.
            there: called when nothing is read on the device any more.
        """
        parts: list[Future[None]] = [Future() for _ in range(THREADS)]
        left, lock = [THREADS], Lock()

        def begin() -> tuple[Buffer, Event]:
            try:
                buffer = self._take()
                return buffer, self._launched(launch, buffer)
            except BaseException:
                there()
                raise

        def work(begun: Future[tuple[Buffer, Event]], number: int) -> None:
            buffer, ended = begun.result()
            try:
                try:
                    ended.synchronize()
                finally:
                    if not number:
                        there()
                finish(buffer, number, THREADS)
            finally:
                with lock:
                    left[0] -= 1
                    last = not left[0]
                if last:
                    self._free.put(buffer)

        def run(begun: Future[tuple[Buffer, Event]], number: int) -> None:
            try:
                work(begun, number)
            except BaseException as error:
                parts[number].set_exception(error)
            else:
                parts[number].set_result(None)

        def hand_over() -> None:
            pools = self._threads()
            begun = pools.bus.submit(begin)
            for number in range(THREADS):
                pools.coming.submit(run, begun, number)

        self._held.append(hand_over)
        if not self._holding:
            self.hand_over()
        return Staged(parts, self.hand_over)

    @contextmanager
    def holding(self) -> Iterator[None]:
        """What comes is handed to the threads when the block ends: they would take turns with the engine thread while
        it has launches to make."""
        self._holding = True
        try:
            yield
        finally:
            self._holding = False
            self.hand_over()

    def hand_over(self) -> None:
        """What comes, up to now."""
        with suppress(IndexError):  # there is nothing more
            while True:
                hand_over = self._held.popleft()
                hand_over()

    def send(self, fill: Part, launch: Callable[[Buffer], Event], there: Callable[[], None]) -> None:
        """To the device; returns when the copies are launched, for which the buffer has to be full.

        Args:
            fill: puts into the buffer what is to go.
            launch: launches copies out of it; the event stands behind them.
            there: called when nothing is read any more of what ``launch`` has copied to.
        """
        threads = self._threads().going
        try:
            buffer = self._filled(fill, threads)
            ended = self._launched(launch, buffer)
        except BaseException:
            there()
            raise

        def give_back() -> None:
            try:
                ended.synchronize()
            finally:
                there()
                self._free.put(buffer)

        threads.submit(give_back)

    def _filled(self, fill: Part, threads: ThreadPoolExecutor) -> Buffer:
        buffer = self._take()
        parts = [threads.submit(fill, buffer, number, THREADS) for number in range(THREADS)]
        wrong = [error for part in parts if (error := part.exception()) is not None]
        if wrong:
            self._free.put(buffer)
            raise wrong[0]
        return buffer

    def _launched(self, launch: Callable[[Buffer], Event], buffer: Buffer) -> Event:
        try:
            return launch(buffer)
        except BaseException:
            self._device.synchronize()
            self._free.put(buffer)
            raise

    def _threads(self) -> _Pools:
        if self._pools is None:
            self._pools = _Pools()
        return self._pools

    def close(self) -> None:
        """Wait for the copies that are under way. There must be no more of them."""
        if self._pools is not None:
            for pool in (self._pools.bus, self._pools.coming, self._pools.going):
                pool.shutdown()

    def _take(self) -> Buffer:
        with self._making:
            if self._free.empty() and self._made < BUFFERS:
                return self._buffer()
        return self._free.get()

    def _buffer(self) -> Buffer:
        self._made += 1
        return {
            name: self._device.pinned(shape, np.dtype(dtype)) for name, (shape, dtype) in self._arrays.items()
        }
