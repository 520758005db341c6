"""Copies between device and host memory while steps go on: through pinned buffers, with threads on the host's side.

The engine thread launches what goes over the bus, from or to a pinned buffer. What is done on the host, out of the
buffer into memory of its own or the other way round, threads do: behind copies that come, ahead of those that go.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
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
"""Copies on their way at once; one more waits for a buffer, and all steps with it. Two prompts may end in a step, each
with a snapshot behind its picture and one behind its turn."""
THREADS = 4
"""Finish one copy together: memory that is touched for the first time takes longer than the bus."""


@attrs.frozen(eq=False)
class Staged:
    """Until a copy is whole."""

    _parts: Sequence[Future[None]] = ()

    def wait(self) -> None:
        """Raises what went wrong."""
        for part in self._parts:
            part.result()


class Staging:
    """Args:
    arrays: shape and dtype of each array of a buffer, by name.
    """

    def __init__(self, device: Device, arrays: dict[str, tuple[tuple[int, ...], str]]) -> None:
        self._device, self._arrays = device, arrays
        self._free: SimpleQueue[Buffer] = SimpleQueue()
        self._made = 0
        self._threads: ThreadPoolExecutor | None = None

    def prepare(self) -> None:
        """Make all buffers, which would hold up the first copies."""
        while self._made < BUFFERS:
            self._free.put(self._buffer())

    def bring(self, launch: Callable[[Buffer], Event], finish: Part) -> Staged:
        """From the device; returns when the copies are launched.

        Args:
            launch: launches copies into the buffer; the event stands behind them.
            finish: takes out of the buffer what is wanted.
        """
        buffer = self._take()
        ended = self._launched(launch, buffer)
        threads = self._pool()
        left, lock = [THREADS], Lock()

        def run(number: int) -> None:
            try:
                ended.synchronize()
                finish(buffer, number, THREADS)
            finally:
                with lock:
                    left[0] -= 1
                    last = not left[0]
                if last:
                    self._free.put(buffer)

        return Staged([threads.submit(run, number) for number in range(THREADS)])

    def send(self, fill: Part, launch: Callable[[Buffer], Event]) -> None:
        """To the device; returns when the copies are launched, for which the buffer has to be full.

        Args:
            fill: puts into the buffer what is to go.
            launch: launches copies out of it; the event stands behind them.
        """
        buffer = self._take()
        threads = self._pool()
        parts = [threads.submit(fill, buffer, number, THREADS) for number in range(THREADS)]
        wrong = [error for part in parts if (error := part.exception()) is not None]
        if wrong:
            self._free.put(buffer)
            raise wrong[0]
        ended = self._launched(launch, buffer)

        def give_back() -> None:
            ended.synchronize()
            self._free.put(buffer)

        threads.submit(give_back)

    def _launched(self, launch: Callable[[Buffer], Event], buffer: Buffer) -> Event:
        try:
            return launch(buffer)
        except BaseException:
            self._device.synchronize()
            self._free.put(buffer)
            raise

    def _pool(self) -> ThreadPoolExecutor:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(BUFFERS * THREADS, "luce-staging")
        return self._threads

    def close(self) -> None:
        """Wait for the copies that are under way. There must be no more of them."""
        if self._threads is not None:
            self._threads.shutdown()

    def _take(self) -> Buffer:
        if self._free.empty() and self._made < BUFFERS:
            return self._buffer()
        return self._free.get()

    def _buffer(self) -> Buffer:
        self._made += 1
        return {
            name: self._device.pinned(shape, np.dtype(dtype)) for name, (shape, dtype) in self._arrays.items()
        }
