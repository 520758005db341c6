"""CUDA and HIP through CuPy: RawModule compiles the kernels, its streams, events and graphs run them.

Imported only where a GPU is asked for; without CuPy :func:`open_device` says what to install.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt

from luce.compute.device import SCALARS
from luce.compute.kernel_sources import Defines, kernels_directory, module_key, source_path
from luce.compute.operands import DEFAULT_OPERANDS, Operands
from luce.compute.room import Room
from luce.errors import ConfigError, DeviceError
from luce.paused_collector import paused_collector

__all__ = ["CupyDevice", "open_device"]

Host = npt.NDArray[Any]

PLAIN_SHARED = 48 * 1024
"""Bytes of shared memory that a block may have without asking."""


def open_device(index: int = 0, flag: str = "--device", operands: Operands = DEFAULT_OPERANDS) -> CupyDevice:
    """The GPU with this number. The calling thread's work goes to it from now on, where it names no stream.

    Args:
        flag: that asked for it.
        operands: of weight products.

    Raises:
        ConfigError: CuPy is not installed, or there is no such GPU.
    """
    try:
        import cupy
    except ImportError as error:
        raise ConfigError(
            f"a GPU needs CuPy, which cannot be imported ({error}); install it with: "
            "pip install 'luce[cuda13]' (CUDA 13), 'luce[cuda12]' (CUDA 12) or 'luce[rocm]' (ROCm)",
            flag=flag,
        ) from None
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise ConfigError(f"no GPU can be used: {error}; use cpu", flag=flag) from None
    if index >= count:
        raise ConfigError(f"there is no GPU {index}; this machine has {count}", flag=flag)
    return CupyDevice(cupy, index, operands)


def _launcher() -> Any:
    """cuda.bindings' driver, which can let grids start early; None without it (the launches are CuPy's then)."""
    try:
        from cuda.bindings import driver
    except ImportError:
        return None
    return driver


@attrs.define(eq=False)
class CupyKernel:
    name: str
    raw: Any
    device: CupyDevice
    _raised: bool = False

    def __call__(
        self,
        grid: tuple[int, int, int],
        block: int,
        args: Sequence[Any],
        *,
        shared: int = 0,
        early: bool = False,
    ) -> None:
        self._allow(shared)
        driver = self.device.driver
        if driver is None or not early:
            self.raw(grid, (block, 1, 1), tuple(args), shared_mem=shared)
            return
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = grid
        config.blockDimX, config.blockDimY, config.blockDimZ = block, 1, 1
        config.sharedMemBytes = shared
        config.hStream = self.device.cupy.cuda.get_current_stream().ptr
        attribute = driver.CUlaunchAttribute()
        attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        value = driver.CUlaunchAttributeValue()
        value.programmaticStreamSerializationAllowed = 1
        attribute.value = value
        config.attrs, config.numAttrs = [attribute], 1
        cells = [_argument(value) for value in args]
        pointers = (ctypes.c_void_p * len(cells))(*(ctypes.addressof(cell) for cell in cells))
        function = driver.CUfunction(self.raw.kernel.ptr)
        (status,) = driver.cuLaunchKernelEx(config, function, ctypes.addressof(pointers), 0)
        if int(status):
            raise DeviceError(f"kernel {self.name} could not be launched: {status}")

    def _allow(self, shared: int) -> None:
        if shared > PLAIN_SHARED and not self._raised:
            # Always the same number: the function is one for all who launch it, on whatever thread.
            self.raw.max_dynamic_shared_size_bytes = self.device.shared_limit
            self._raised = True

    def clusters_at_once(self, grid: int, block: int, shared: int) -> int:
        """Of such a launch, on an idle device; 0 without cuda.bindings."""
        driver = self.device.driver
        if driver is None:
            return 0
        self._allow(shared)
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = grid, 1, 1
        config.blockDimX, config.blockDimY, config.blockDimZ = block, 1, 1
        config.sharedMemBytes = shared
        status, count = driver.cuOccupancyMaxActiveClusters(driver.CUfunction(self.raw.kernel.ptr), config)
        if int(status):
            raise DeviceError(f"kernel {self.name}: its clusters could not be counted: {status}")
        return int(count)


def _argument(value: Any) -> Any:
    if isinstance(value, np.generic):
        return SCALARS[value.dtype](value.item())
    return ctypes.c_void_p(0 if value is None else value.data.ptr)


@attrs.frozen(eq=False)
class _Event:
    raw: Any

    def record(self) -> None:
        self.raw.record()

    def synchronize(self) -> None:
        self.raw.synchronize()

    def wait(self) -> None:
        import cupy

        cupy.cuda.get_current_stream().wait_event(self.raw)

    def seconds_since(self, earlier: _Event) -> float:
        import cupy

        return float(cupy.cuda.get_elapsed_time(earlier.raw, self.raw)) / 1000


class CupyDevice:
    """Implements :class:`luce.compute.device.Device` with CuPy. Made by :func:`open_device`."""

    def __init__(self, cupy: Any, index: int, operands: Operands = DEFAULT_OPERANDS) -> None:
        self.cupy = cupy
        self.index = index
        self.operands = operands
        self.hip: bool = cupy.cuda.runtime.is_hip
        self._device = cupy.cuda.Device(index)
        self._device.use()
        found = cupy.cuda.runtime.getDeviceProperties(index)
        # Before sm_90 pdl_wait is nothing, so no grid may start early there.
        self.driver = None if self.hip or found["major"] < 9 else _launcher()
        if self.hip:
            self.arch = found["gcnArchName"].decode().split(":")[0]
        else:
            capability = f"{found['major']}{found['minor']}"
            self.arch = f"sm_{capability}" + ("a" if capability in ("90", "100", "120") else "")
        self.multiprocessors: int = found["multiProcessorCount"]
        self.shared_limit: int = found["sharedMemPerBlockOptin"] if not self.hip else 65536
        compiler = "hiprtc" if self.hip else "nvrtc " + ".".join(map(str, cupy.cuda.nvrtc.getVersion()))
        self.fingerprint = f"{found['name'].decode()} {self.arch} {compiler}{operands.of_fingerprint}"
        self.options: tuple[str, ...] = ()
        """Of the compiler, beside those that each kernel has."""
        self._modules: dict[str, Any] = {}
        self._kernels: dict[tuple[str, str, tuple[tuple[str, int | str], ...]], CupyKernel] = {}

    def free_bytes(self) -> int:
        with self._device:
            return int(self.cupy.cuda.runtime.memGetInfo()[0])

    def kernel(self, source: str, name: str, defines: Defines | None = None) -> CupyKernel:
        wanted = {**(defines or {}), **self.operands.defines}
        asked = source, name, tuple(sorted(wanted.items()))
        found = self._kernels.get(asked)
        if found is None:
            found = self._kernels[asked] = self._load(source, name, wanted)
        return found

    def _load(self, source: str, name: str, wanted: Defines) -> CupyKernel:
        key = module_key(source, wanted, self.arch)
        module = self._modules.get(key)
        if module is None:
            # CuPy's cache does not see what an included file says; the key among the macros does.
            options = ["-std=c++17", f"-I{kernels_directory()}", f"-DLUCE_KEY={key}"]
            options += [f"-D{macro}={value}" for macro, value in wanted.items()]
            options += ["-ffp-contract=off"] if self.hip else [f"-arch={self.arch}"]
            options += self.options
            module = self.cupy.RawModule(code=source_path(source).read_text(), options=tuple(options))
            self._modules[key] = module
        try:
            return CupyKernel(name, module.get_function(name), self)
        except Exception as error:
            raise DeviceError(
                f"{source}, {name} with {dict(wanted)} does not compile for {self.arch}: {error}"
            ) from error

    def runs_at_once(self, kernel: CupyKernel, grid: int, cluster: int, block: int, shared: int) -> bool:
        return kernel.clusters_at_once(grid, block, shared) * cluster >= grid

    def empty(self, shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> Any:
        try:
            return self.cupy.empty(shape, dtype)
        except self.cupy.cuda.memory.OutOfMemoryError as error:
            raise DeviceError(f"the GPU's memory is used up: {error}") from None

    @contextlib.contextmanager
    def room(self, num_bytes: int) -> Iterator[None]:
        cuda = self.cupy.cuda
        pool = self.cupy.get_default_memory_pool()
        try:
            memory = cuda.Memory(num_bytes)
        except (cuda.memory.OutOfMemoryError, cuda.runtime.CUDARuntimeError) as error:
            raise DeviceError(f"the GPU has no {num_bytes:,} bytes of memory: {error}") from None
        room = Room(cuda.MemoryPointer(memory, 0), num_bytes, pool.malloc)
        with cuda.using_allocator(room.take):
            yield
        self.synchronize()
        pool.free_all_blocks()

    def passing(self, shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> Any:
        with self.cupy.cuda.using_allocator(self.cupy.get_default_memory_pool().malloc):
            return self.empty(shape, dtype)

    def zeros(self, shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> Any:
        made = self.empty(shape, dtype)
        made.data.memset_async(0, made.nbytes, self.cupy.cuda.get_current_stream())
        return made

    def array(self, host: Host) -> Any:
        made = self.empty(host.shape, host.dtype)
        made.set(np.ascontiguousarray(host))
        self.cupy.cuda.get_current_stream().synchronize()  # small copies return before they are there
        return made

    def numpy(self, array: Any) -> Host:
        found: Host = self.cupy.asnumpy(array)
        return found

    def address(self, array: Any) -> int:
        return int(array.data.ptr)

    def pinned(self, shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> Host:
        import cupyx

        made: Host = cupyx.zeros_pinned(shape, dtype)
        return made

    def upload(self, to: Any, pinned: Host) -> None:
        assert to.nbytes == pinned.nbytes and pinned.flags.c_contiguous
        to.data.copy_from_host_async(ctypes.c_void_p(pinned.ctypes.data), pinned.nbytes)

    def download(self, pinned: Host, source: Any) -> None:
        assert source.nbytes == pinned.nbytes and pinned.flags.c_contiguous
        source.data.copy_to_host_async(ctypes.c_void_p(pinned.ctypes.data), source.nbytes)

    def copy(self, to: Any, source: Any) -> None:
        assert to.flags.c_contiguous and source.flags.c_contiguous and to.nbytes == source.nbytes
        to.data.copy_from_device_async(source.data, source.nbytes)

    def fill(self, array: Any, byte: int) -> None:
        assert array.flags.c_contiguous
        array.data.memset_async(byte, array.nbytes, self.cupy.cuda.get_current_stream())

    def stream(self) -> Any:
        with self._device:
            return self.cupy.cuda.Stream(non_blocking=True)

    @contextlib.contextmanager
    def using(self, stream: Any) -> Iterator[None]:
        with self._device, stream:
            yield

    def event(self) -> _Event:
        with self._device:
            return _Event(self.cupy.cuda.Event(block=True))

    def capture(self, record: Callable[[], None]) -> Any:
        stream = self.cupy.cuda.get_current_stream()
        mode = self.cupy.cuda.runtime.streamCaptureModeThreadLocal
        # A round of the collector in this thread would free device memory of what it finds, which breaks a recording.
        with paused_collector():
            stream.begin_capture(mode)
            try:
                record()
            except BaseException:
                with contextlib.suppress(Exception):
                    stream.end_capture()
                raise
            return stream.end_capture()

    def synchronize(self) -> None:
        self._device.synchronize()
