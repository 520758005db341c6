"""What an engine may ask of a device that runs our kernels. Implemented by CUDA and HIP through CuPy
(:mod:`luce.compute.cupy_device`) and, for tests, on the CPU (:mod:`luce.compute.host_device`).

Arrays are the device's own (CuPy's, or numpy's on the host): slicing, ``view`` and ``reshape`` work as
in numpy; nothing else of an array library is used on them. Work is asynchronous in the order of its stream.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from luce.compute.kernel_sources import Defines
from luce.compute.operands import Operands

__all__ = ["SCALARS", "Array", "Device", "Event", "Graph", "Kernel", "Stream"]

Array = Any
"""An array in the device's memory: numpy.ndarray on the host device, cupy.ndarray elsewhere."""

Host = npt.NDArray[Any]

SCALARS = {
    np.dtype(np.int32): ctypes.c_int32,
    np.dtype(np.uint32): ctypes.c_uint32,
    np.dtype(np.int64): ctypes.c_int64,
    np.dtype(np.float32): ctypes.c_float,
}
"""How the scalars that a kernel takes are handed to it."""


class Kernel(Protocol):
    """A compiled kernel.

    Args:
        grid: blocks in x, y, z.
        block: threads, a multiple of 32.
        args: arrays of this device, or numpy scalars (int32, uint32, int64, float32) of the exact type.
        shared: bytes of shared memory.
        early: the grid may start while the one before it in the stream still runs; only for kernels that call
            ``pdl_wait`` before they read what others wrote. Ignored where the device cannot do it.
    """

    def __call__(
        self,
        grid: tuple[int, int, int],
        block: int,
        args: Sequence[Any],
        *,
        shared: int = 0,
        early: bool = False,
    ) -> None: ...


class Stream(Protocol):
    """An order of work."""

    def synchronize(self) -> None:
        """Wait for all of it. Frees the GIL."""


class Event(Protocol):
    """A point in a stream."""

    def record(self) -> None:
        """Set it behind the work that the current stream has so far."""

    def synchronize(self) -> None:
        """Sleep until it is reached. Frees the GIL."""

    def wait(self) -> None:
        """Let the current stream's later work wait for it."""

    def seconds_since(self, earlier: Event) -> float:
        """Device time between two events that were reached."""


class Graph(Protocol):
    """Recorded work of one stream."""

    def launch(self) -> None:
        """Run it on the current stream."""


class Device(Protocol):
    """One device and the current thread's place on it. Use from one thread at a time for each stream."""

    @property
    def arch(self) -> str:
        """Say "sm_90a", "gfx1151", "host"."""

    @property
    def fingerprint(self) -> str:
        """Model and compiler: equal fingerprints give equal bits."""

    @property
    def operands(self) -> Operands:
        """What weight products multiply; all kernels are compiled for it."""

    @property
    def multiprocessors(self) -> int: ...

    @property
    def shared_limit(self) -> int:
        """Bytes of shared memory that a block may have."""

    def free_bytes(self) -> int:
        """Device memory that nobody has taken yet."""

    def kernel(self, source: str, name: str, defines: Defines | None = None) -> Kernel:
        """Kernel ``name`` of ``kernels/<source>`` compiled with these macros; compiled once and cached on disk.

        Raises:
            DeviceError: the source does not compile for this device.
        """

    def runs_at_once(self, kernel: Kernel, grid: int, cluster: int, block: int, shared: int) -> bool:
        """Do all ``grid`` blocks of such a launch, in clusters of ``cluster``, run at the same time once the device has
        nothing else to do? False where it cannot tell."""

    def empty(self, shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> Array:
        """Memory with no defined content. Raises DeviceError when there is not enough."""

    def zeros(self, shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> Array: ...

    def room(self, num_bytes: int) -> AbstractContextManager[None]:
        """Allocate so many bytes at once; the arrays that this thread makes meanwhile come from them, and stay.

        Raises:
            DeviceError: there is not enough memory.
        """

    def passing(self, shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> Array:
        """As :meth:`empty`, for what is given back soon: it comes from no :meth:`room`."""

    def array(self, host: Host) -> Array:
        """A copy on the device, there when this returns."""

    def numpy(self, array: Array) -> Host:
        """A copy on the host, after the current stream's work."""

    def address(self, array: Array) -> int:
        """Where it begins on the device, for kernels that are told of many places at once."""

    def pinned(self, shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> Host:
        """Zeroed host memory that the device copies from and to in the background."""

    def upload(self, to: Array, pinned: Host) -> None:
        """Queue a copy; ``pinned`` stays as it is until the stream is past it."""

    def download(self, pinned: Host, source: Array) -> None:
        """Queue a copy to pinned memory."""

    def copy(self, to: Array, source: Array) -> None:
        """Queue a copy between contiguous arrays of this device with the same number of bytes."""

    def fill(self, array: Array, byte: int) -> None:
        """Queue setting every byte."""

    def stream(self) -> Stream: ...

    def using(self, stream: Stream) -> AbstractContextManager[None]:
        """Make it the current thread's stream."""

    def event(self) -> Event: ...

    def capture(self, record: Callable[[], None]) -> Graph:
        """Record what ``record`` launches on the current stream (not the default one), without running it."""

    def synchronize(self) -> None: ...
