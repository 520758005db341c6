"""Copies of device arrays on their way to host memory while steps go on: through pinned buffers, finished by threads.

The engine thread launches copies into a pinned buffer on the steps' own stream: they see what the steps before have
written, and the steps behind wait for as long as the bus takes. What is then done on the host, out of the buffer into
memory of its own, threads do when the device is past the copies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from threading import Lock
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt

from luce.compute.device import Array, Device

__all__ = ["Staged", "Staging"]

Host = npt.NDArray[Any]

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
        self._free: SimpleQueue[dict[str, Host]] = SimpleQueue()
        self._made = 0
        self._threads: ThreadPoolExecutor | None = None

    def prepare(self) -> None:
        """Make all buffers, which would hold up the first copies."""
        while self._made < BUFFERS:
            self._free.put(self._buffer())

    def copy(
        self,
        launches: Callable[[dict[str, Host]], Iterable[tuple[Host, Array]]],
        finish: Callable[[dict[str, Host], int, int], None],
    ) -> Staged:
        """Launch copies on the current stream; returns when they are launched.

        Args:
            launches: pairs of a place in the buffer and an array on the device, both contiguous.
            finish: takes what is needed out of the buffer: part ``number`` of ``count``, on a thread of its own.
        """
        buffer = self._take()
        launched = False
        try:
            for place, array in launches(buffer):
                self._device.download(place, array)
            ended = self._device.event()
            ended.record()
            launched = True
        finally:
            if not launched:
                self._device.synchronize()
                self._free.put(buffer)
        if self._threads is None:
            self._threads = ThreadPoolExecutor(BUFFERS * THREADS, "luce-staging")
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

        return Staged([self._threads.submit(run, number) for number in range(THREADS)])

    def close(self) -> None:
        """Wait for the copies that are under way. There must be no more of them."""
        if self._threads is not None:
            self._threads.shutdown()

    def _take(self) -> dict[str, Host]:
        if self._free.empty() and self._made < BUFFERS:
            return self._buffer()
        return self._free.get()

    def _buffer(self) -> dict[str, Host]:
        self._made += 1
        return {
            name: self._device.pinned(shape, np.dtype(dtype)) for name, (shape, dtype) in self._arrays.items()
        }
