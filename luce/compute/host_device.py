"""The host build: kernels compiled by the system's C++ compiler and run on the CPU, thread by thread.

Slow (a microsecond for a matrix instruction of a warp) and meant for tests: every kernel and the whole GPU engine run
here without a GPU. Work is done at once, in the order it is asked for. A kernel that writes next to an array fails.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
import tempfile
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
from luce.compute.kernel_sources import Defines, kernels_directory, module_key, source_path, sources_changed
from luce.errors import DeviceError

__all__ = ["HostDevice", "host_compiler"]

Host = npt.NDArray[Any]

FLAGS = (
    "-std=c++17", "-fPIC", "-shared", "-fno-strict-aliasing", "-ffp-contract=off", "-march=native",
    "-Wall", "-Werror=return-type", "-Wno-unknown-pragmas", "-Wno-unused-function", "-x", "c++", "-DLUCE_HOST",
)  # fmt: skip


_ONE_AT_A_TIME = threading.Lock()
"""A compiled module holds the block that runs in its own variables, whichever thread or device asks for it."""


def host_compiler() -> str | None:
    """The system's C++ compiler (``CXX``, c++, g++, clang++), if there is one."""
    for name in (os.environ.get("CXX"), "c++", "g++", "clang++"):
        if name and (found := shutil.which(name)):
            return found
    return None


def _cache_directory() -> Path:
    root = os.environ.get("LUCE_KERNEL_CACHE") or os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "luce" / "host-kernels"


def _compile(source: str, defines: Defines, options: tuple[str, ...]) -> Path:
    compiler = host_compiler()
    if compiler is None:
        raise DeviceError(
            "the host build of the kernels needs a C++ compiler; install g++ or clang, or set CXX"
        )
    target = _cache_directory() / f"{Path(source).stem}-{module_key(source, defines, compiler, *options)}.so"
    if target.is_file():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        built = Path(folder) / target.name
        macros = [f"-D{name}={value}" for name, value in defines.items()]
        command = [
            compiler,
            *FLAGS,
            *options,
            f"-I{kernels_directory()}",
            *macros,
            str(source_path(source)),
            "-o",
            str(built),
        ]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise DeviceError(
                f"{source} does not compile for the host with {dict(defines)}:\n{done.stderr[-4000:]}"
            )
        if sources_changed():  # the next process would take this for what the sources were
            raise DeviceError("the kernels' sources were edited while they were compiled; start again")
        built.rename(target)
    return target


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
    """

    arch: str = "host"
    fingerprint = "host build of the kernels"
    multiprocessors = 4
    shared_limit: int = 232448

    def __init__(self, *, threads: bool = False, options: tuple[str, ...] = (), poison: bool = True) -> None:
        # -O2 takes half as long again to compile, which is most of the time, and its code is no quicker.
        self._options = ("-O1", *(("-DLUCE_HOST_THREADS", "-pthread") if threads else ()), *options)
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
        path = _compile(source, defines or {}, self._options)
        module = self._modules.get(path)
        if module is None:
            module = self._modules[path] = ctypes.CDLL(str(path))
        try:
            entry = module[f"{name}_host"]
        except AttributeError:
            raise DeviceError(f"{source} has no LUCE_EXPORT({name})") from None
        entry.restype = ctypes.c_char_p
        return HostKernel(name, entry, self)

    def empty(self, shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> Host:
        made = aligned(shape, dtype)
        if self._poison:
            made.reshape(-1).view(np.uint8)[...] = 0xFF
        return made

    def zeros(self, shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> Host:
        made = aligned(shape, dtype)
        made.reshape(-1).view(np.uint8)[...] = 0
        return made

    def array(self, host: Host) -> Host:
        made = aligned(host.shape, host.dtype)
        made[...] = host
        return made

    def numpy(self, array: Host) -> Host:
        return array.copy()

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
