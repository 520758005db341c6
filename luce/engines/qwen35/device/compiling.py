"""Compiles a program's kernels side by side before it starts: one after the other they take minutes the first time.

Which modules a program needs is found by running it, once for every height of a step and for a long chunk, over a
stand-in of the device that notes what is asked for and launches nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from luce.compute.device import Array, Device
from luce.compute.kernel_sources import Defines

__all__ = ["Recorder", "compile_all"]


class Recorder:
    """Stands in for a device: notes the kernels that are asked for. Its arrays are the host's, and never touched."""

    def __init__(self, device: Device) -> None:
        self.arch, self.fingerprint = device.arch, device.fingerprint
        self.multiprocessors, self.shared_limit = device.multiprocessors, device.shared_limit
        self.wanted: dict[tuple[str, str, tuple[tuple[str, int | str], ...]], None] = {}
        """(source, name, macros), in the order in which they were asked for first."""

    def kernel(self, source: str, name: str, defines: Defines | None = None) -> Callable[..., None]:
        self.wanted[source, name, tuple(sorted((defines or {}).items()))] = None
        return lambda *_, **__: None

    def runs_at_once(self, *_: object) -> bool:
        """So that what may be launched is compiled."""
        return True

    def empty(self, shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        return np.empty(shape, dtype)

    def zeros(self, shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Ones: sizes that a kernel would have put there are divided by."""
        return np.ones(shape, dtype)

    def numpy(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return array

    def fill(self, array: Array, byte: int) -> None: ...

    def upload(self, to: Array, pinned: npt.NDArray[Any]) -> None: ...

    def copy(self, to: Array, source: Array) -> None: ...


def compile_all(device: Device, wanted: Sequence[tuple[str, str, tuple[tuple[str, int | str], ...]]]) -> None:
    """Compile these kernels, or take them from the cache, on all processors.

    Raises:
        DeviceError: one does not compile.
    """
    modules: dict[tuple[str, tuple[tuple[str, int | str], ...]], str] = {}
    for source, name, macros in wanted:
        modules.setdefault((source, macros), name)

    def make(module: tuple[tuple[str, tuple[tuple[str, int | str], ...]], str]) -> None:
        (source, macros), name = module
        defines: Mapping[str, int | str] = dict(macros)
        with device.using(device.stream()):
            device.kernel(source, name, defines)

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for _ in pool.map(make, modules.items()):
            pass
