"""The host build: kernels compiled by the system's C++ compiler and run on the CPU, thread by thread.

Slow (a microsecond for a matrix instruction of a warp) and meant for tests: every kernel and the whole GPU engine run
here without a GPU. Work is done at once, in the order it is asked for. A kernel that writes next to an array fails.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt

from luce.compute.device import SCALARS
from luce.compute.fenced_memory import aligned, strays_of
from luce.compute.host_build import built_module
from luce.compute.kernel_sources import Defines
from luce.compute.operands import DEFAULT_OPERANDS, Operands
from luce.errors import DeviceError
from luce.paused_collector import paused_collector

__all__ = ["HostDevice"]

Host = npt.NDArray[Any]

_ONE_AT_A_TIME = threading.Lock()
"""The block that runs is in variables of the library that modules share, whichever thread or device asks."""


@attrs.define(eq=False)
class HostKernel:
    """A kernel's entry in a compiled module."""

    name: str
    entry: Any
    device: HostDevice

    def __call__(
        self,
        grid: tuple[int, int, int],
        block: int,
        args: Sequence[Any],
        *,
        shared: int = 0,
        early: bool = False,
    ) -> None:
        if self.device.recording is not None:
            kept = tuple(args)
            self.device.recording.append(lambda: self(grid, block, kept, shared=shared))
            return
        if shared > self.device.shared_limit:
            raise DeviceError(
                f"kernel {self.name}: {shared} bytes of shared memory, and a block may have {self.device.shared_limit}"
            )
        cells = [_argument(value) for value in args]
        pointers = (ctypes.c_void_p * len(cells))(*(ctypes.addressof(cell) for cell in cells))
        shape = (ctypes.c_int32 * 4)(*grid, block)
        with _ONE_AT_A_TIME:
            failure = self.entry(shape, ctypes.c_int64(shared), pointers)
        if failure:
            raise DeviceError(f"kernel {self.name}: {failure.decode()}")
        for value in args:
            if isinstance(value, np.ndarray) and (stray := strays_of(value)) is not None:
                raise DeviceError(f"kernel {self.name} {stray}")


def _argument(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        assert value.flags.c_contiguous, "a kernel takes contiguous arrays"
        return ctypes.c_void_p(value.ctypes.data)
    if value is None:
        return ctypes.c_void_p(0)
    return SCALARS[value.dtype](value.item())


class _HostStream:
    def synchronize(self) -> None:
        return


@attrs.define(eq=False)
class _HostEvent:
    at: float = 0.0

    def record(self) -> None:
        self.at = time.perf_counter()

    def synchronize(self) -> None:
        return

    def wait(self) -> None:
        return

    def seconds_since(self, earlier: _HostEvent) -> float:
        return self.at - earlier.at


@attrs.frozen(eq=False)
class _HostGraph:
    commands: tuple[Callable[[], None], ...]

    def launch(self) -> None:
        for command in self.commands:
            command()


class HostDevice:
    """Implements :class:`luce.compute.device.Device` on the CPU.

    Args:
        threads: run a block's threads as threads of the system (for the sanitizers) and not as fibers.
        options: further compiler options, say ``("-fsanitize=thread",)``.
        poison: fresh memory of :meth:`empty` holds NaN patterns.
        operands: of weight products.
    """

    arch: str = "host"
    multiprocessors = 4
    shared_limit: int = 232448

    def __init__(
        self,
        *,
        threads: bool = False,
        options: tuple[str, ...] = (),
        poison: bool = True,
        operands: Operands = DEFAULT_OPERANDS,
    ) -> None:
        self.operands = operands
        self.fingerprint = f"host build of the kernels{operands.of_fingerprint}"
        self._options = (*(("-DLUCE_HOST_THREADS", "-pthread") if threads else ()), *options)
        self._poison = poison
        self._modules: dict[Path, ctypes.CDLL] = {}
        self._captures = threading.local()

    @property
    def recording(self) -> list[Callable[[], None]] | None:
        """What is captured on this thread; another thread's launches are no part of it."""
        return getattr(self._captures, "commands", None)

    def free_bytes(self) -> int:
        return 1 << 34

    def kernel(self, source: str, name: str, defines: Defines | None = None) -> HostKernel:
        path = built_module(source, {**(defines or {}), **self.operands.defines}, self._options)
        module = self._modules.get(path)
        if module is None:
            module = self._modules[path] = ctypes.CDLL(str(path))
        try:
            entry = module[f"{name}_host"]
        except AttributeError:
            raise DeviceError(f"{source} has no LUCE_EXPORT({name})") from None
        entry.restype = ctypes.c_char_p
        return HostKernel(name, entry, self)

    def runs_at_once(self, kernel: Any, grid: int, cluster: int, block: int, shared: int) -> bool:
        return True

    def empty(self, shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> Host:
        made = aligned(shape, dtype)
        if self._poison:
            made.reshape(-1).view(np.uint8)[...] = 0xFF
        return made

    def zeros(self, shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> Host:
        made = aligned(shape, dtype)
        made.reshape(-1).view(np.uint8)[...] = 0
        return made

    @contextlib.contextmanager
    def room(self, num_bytes: int) -> Iterator[None]:
        yield  # every array has fences of its own

    def passing(self, shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> Host:
        return self.empty(shape, dtype)

    def array(self, host: Host) -> Host:
        made = aligned(host.shape, host.dtype)
        made[...] = host
        return made

    def numpy(self, array: Host) -> Host:
        return array.copy()

    def address(self, array: Host) -> int:
        return array.ctypes.data

    def pinned(self, shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> Host:
        return self.zeros(shape, dtype)

    def upload(self, to: Host, pinned: Host) -> None:
        self.copy(to, pinned)

    def download(self, pinned: Host, source: Host) -> None:
        self.copy(pinned, source)

    def copy(self, to: Host, source: Host) -> None:
        assert to.flags.c_contiguous and source.flags.c_contiguous and to.nbytes == source.nbytes
        target, origin = to.reshape(-1).view(np.uint8), source.reshape(-1).view(np.uint8)
        self._do(lambda: np.copyto(target, origin))

    def fill(self, array: Host, byte: int) -> None:
        target = array.reshape(-1).view(np.uint8)
        self._do(lambda: target.fill(byte))

    def stream(self) -> _HostStream:
        return _HostStream()

    @contextlib.contextmanager
    def using(self, stream: _HostStream) -> Iterator[None]:
        yield

    def event(self) -> _HostEvent:
        return _HostEvent()

    def capture(self, record: Callable[[], None]) -> _HostGraph:
        assert self.recording is None, "captures do not nest"
        commands: list[Callable[[], None]] = []
        self._captures.commands = commands
        try:
            with paused_collector():  # as on a GPU
                record()
            return _HostGraph(tuple(commands))
        finally:
            self._captures.commands = None

    def synchronize(self) -> None:
        return

    def _do(self, command: Callable[[], None]) -> None:
        if self.recording is not None:
            self.recording.append(command)
        else:
            command()
