"""How fast a device copies and multiplies, measured in the same run as everything that is held against it."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from luce.bench.limits import Speeds
from luce.compute.device import Device
from luce.errors import DeviceError

__all__ = ["best_seconds", "device_speeds", "host_speeds"]

HOST_BYTES = 1 << 28
"""Of each of two arrays: far more than any cache holds."""
HOST_SIDE = 1536
"""Of the square matrices that are multiplied."""


def host_speeds(size: int = HOST_BYTES, side: int = HOST_SIDE) -> Speeds:
    """Of one core, which is what the numpy engine's products run on: numpy's copy and its float32 product.

    Args:
        size: bytes of each of two arrays.
        side: of the square matrices.
    """
    source = np.ones(size // 4, np.float32)
    target = np.empty_like(source)
    generator = np.random.default_rng(0)
    a, b = (generator.standard_normal((side, side), np.float32) for _ in range(2))
    out = np.empty((side, side), np.float32)
    copied = best_seconds(lambda: np.copyto(target, source))
    multiplied = best_seconds(lambda: np.dot(a, b, out=out))
    return Speeds(2.0 * source.nbytes / copied, 2.0 * side**3 / multiplied)


DEVICE_BYTES = 1 << 28
DEVICE_SIDE = 8192


def device_speeds(device: Device, size: int = DEVICE_BYTES, side: int = DEVICE_SIDE) -> Speeds:
    """Of a GPU: its own copy within device memory, and the library's float16 product with float32 sums.

    Raises:
        DeviceError: the library cannot be loaded.
    """
    copied = _copy_seconds(device, size)
    cupy = getattr(device, "cupy", None)
    if cupy is None:  # the host build of the kernels
        return Speeds(2.0 * size / copied, host_speeds(1 << 20).flops_per_second)
    values = np.random.default_rng(0).standard_normal((side, side)).astype(np.float16)
    a, b, out = (
        device.array(values),
        device.array(values[::-1].copy()),
        device.empty((side, side), np.float16),
    )
    try:
        multiplied = _device_seconds(device, lambda: cupy.matmul(a, b, out=out))
    except (ImportError, RuntimeError) as error:
        raise DeviceError(f"the FLOP rate is measured with cuBLAS, which cannot be used: {error}") from None
    return Speeds(2.0 * size / copied, 2.0 * side**3 / multiplied)


def _copy_seconds(device: Device, size: int) -> float:
    source, target = device.zeros(size, np.uint8), device.empty(size, np.uint8)
    return _device_seconds(device, lambda: device.copy(target, source))


def _device_seconds(device: Device, action: Callable[[], object], runs: int = 10) -> float:
    """As :func:`best_seconds`, by the device's clock."""
    taken = []
    for run in range(runs + 2):
        before, behind = device.event(), device.event()
        before.record()
        action()
        behind.record()
        behind.synchronize()
        if run >= 2:
            taken.append(behind.seconds_since(before))
    return max(min(taken), 1e-9)


def best_seconds(action: Callable[[], object], runs: int = 7) -> float:
    """Of the fastest of some runs, the first one left out: what the device can do, whatever disturbed the others."""
    action()
    taken = []
    for _ in range(runs):
        started = time.perf_counter()
        action()
        taken.append(time.perf_counter() - started)
    return min(taken)
