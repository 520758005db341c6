"""The host build with a sanitizer of the compiler in it: a block's threads are threads of the system, arrays end where
they end.

For a process that was started with the sanitizer's library loaded first (:func:`command`).
"""

from __future__ import annotations

import ctypes
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from luce.compute.host_build import host_compiler
from luce.compute.host_device import HostDevice
from luce.compute.operands import DEFAULT_OPERANDS, Operands

__all__ = ["SANITIZERS", "SanitizedDevice", "command", "environment", "missing"]

SANITIZERS = {"address": "libasan.so", "thread": "libtsan.so"}
"""Sanitizer by the library that has to be loaded first."""

SUPPRESSIONS = Path(__file__).with_name("thread_sanitizer.supp")


class SanitizedDevice(HostDevice):
    """Arrays of their exact size, so that a byte before or behind them is known to be nobody's."""

    def __init__(self, sanitizer: str, operands: Operands = DEFAULT_OPERANDS) -> None:
        super().__init__(threads=True, options=(f"-fsanitize={sanitizer}", "-g", "-O1"), operands=operands)
        self._libc = ctypes.CDLL(None)
        self._libc.memalign.restype = ctypes.c_void_p
        self._libc.memalign.argtypes = [ctypes.c_size_t, ctypes.c_size_t]

    def empty(self, shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> Any:
        return self._filled(shape, dtype, 0xFF)

    def zeros(self, shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> Any:
        return self._filled(shape, dtype, 0)

    def array(self, host: npt.NDArray[Any]) -> Any:
        made = self.empty(host.shape, host.dtype)
        made[...] = host
        return made

    def _filled(self, shape: int | tuple[int, ...], dtype: npt.DTypeLike, byte: int) -> Any:
        kind = np.dtype(dtype)
        size = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
        address = self._libc.memalign(256, max(size, 1))
        cells = (ctypes.c_uint8 * size).from_address(address)  # never freed: a test's process ends soon
        made = np.ctypeslib.as_array(cells)
        made.fill(byte)
        return made.view(kind).reshape(shape)


def missing(sanitizer: str) -> str | None:
    """Why this machine cannot build and run with a sanitizer; None if it can."""
    if host_compiler() is None:
        return "a C++ compiler is missing: apt-get install g++"
    return None if _library(sanitizer) else f"{SANITIZERS[sanitizer]} is missing: apt-get install g++"


def command(arguments: Sequence[str]) -> list[str]:
    """Python with its addresses where the thread sanitizer can deal with them."""
    setarch = shutil.which("setarch")
    fixed = [setarch, platform.machine(), "-R"] if setarch else []
    return [*fixed, sys.executable, *arguments]


def environment(sanitizer: str) -> dict[str, str]:
    library = _library(sanitizer)
    assert library is not None, "asked after missing()"
    return {
        "LD_PRELOAD": str(library),
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0:exitcode=99",
        "TSAN_OPTIONS": f"halt_on_error=1:exitcode=99:suppressions='{SUPPRESSIONS}'",
        "OPENBLAS_NUM_THREADS": "1",
        "LUCE_TEST_DEVICE": f"host-{sanitizer}",
    }


def _library(sanitizer: str) -> Path | None:
    compiler = host_compiler()
    assert compiler is not None, "asked after missing()"
    said = subprocess.run(
        [compiler, f"-print-file-name={SANITIZERS[sanitizer]}"], capture_output=True, text=True
    ).stdout.strip()
    return Path(said) if Path(said).is_absolute() and Path(said).exists() else None
