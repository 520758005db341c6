"""One BLAS thread for the whole process, and the fingerprint of the arithmetic that results from it.

Bits of a matrix product change with the BLAS build, with the kernel it picks for the machine and, on some kernels,
with the number of threads (design §6). So the thread count is pinned before any weight is multiplied, and what
remains goes into the fingerprint: equal fingerprints promise equal bits.
"""

from __future__ import annotations

import platform

import attrs
import numpy as np
import threadpoolctl  # type: ignore[import-untyped]

from luce.errors import DeviceError

__all__ = ["Fingerprint", "pin_blas"]


@attrs.frozen
class Fingerprint:
    """The kind of device, as traces and ``luce doctor`` carry it."""

    blas: str
    """Library and version, e.g. ``openblas 0.3.31``."""
    kernel: str
    """Core type whose kernels BLAS runs, e.g. ``SkylakeX``; ``OPENBLAS_CORETYPE`` can choose it."""
    threads: int
    numpy: str
    simd: str
    """The highest instruction set that numpy's own loops use, e.g. ``X86_V4``."""
    machine: str

    def __str__(self) -> str:
        return (
            f"{self.machine} {self.blas} {self.kernel} threads={self.threads} numpy {self.numpy} {self.simd}"
        )


def _simd() -> str:
    found = np.show_config(mode="dicts")["SIMD Extensions"].get("found", [])
    return str(found[-1]) if found else "baseline"


def pin_blas() -> Fingerprint:
    """Limit every BLAS of this process to one thread and say what computes now. Idempotent, process-wide.

    Raises:
        DeviceError: no BLAS that can be limited is loaded, or it did not accept one thread.
    """
    controller = threadpoolctl.ThreadpoolController().select(user_api="blas")
    controller.limit(limits=1)
    libraries = threadpoolctl.ThreadpoolController().select(user_api="blas").info()
    if not libraries:
        raise DeviceError(
            "numpy uses a BLAS library whose threads cannot be pinned; install numpy from its wheels (OpenBLAS)"
        )
    if any(library["num_threads"] != 1 for library in libraries):
        raise DeviceError("BLAS did not accept one thread; unset OPENBLAS_NUM_THREADS and MKL_NUM_THREADS")
    ours = next((lib for lib in libraries if "numpy" in str(lib["filepath"])), libraries[0])
    return Fingerprint(
        blas=f"{ours['internal_api']} {ours['version']}",
        kernel=str(ours.get("architecture", "unknown")),
        threads=1,
        numpy=np.__version__,
        simd=_simd(),
        machine=platform.machine(),
    )
