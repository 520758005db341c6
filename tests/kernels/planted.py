"""A fault of kernels/selftest_faults.cu in a process of its own: `python -m tests.kernels.planted gather 7`."""

from __future__ import annotations

import sys

import numpy as np

from luce.compute.device import Device
from tests.kernels.conftest import open_test_device

__all__ = ["BLOCKS", "exchange", "gather"]

BLOCKS = 4


def gather(device: Device, block: int, *, checked: bool) -> np.ndarray:
    pool, out = device.array(np.arange(64 * BLOCKS, dtype=np.float32)), device.empty(128, np.float32)
    table = device.array(np.array([1, block], np.int32))
    device.kernel("selftest_faults.cu", "selftest_gather")(
        (2, 1, 1), 64, [pool, table, out, np.int32(BLOCKS), np.int32(checked)]
    )
    return device.numpy(out)


def exchange(device: Device, *, synced: bool) -> np.ndarray:
    out = device.empty(64, np.float32)
    kernel = device.kernel("selftest_faults.cu", "selftest_exchange")
    kernel((1, 1, 1), 64, [out, np.int32(synced)], shared=256)
    return device.numpy(out)


if __name__ == "__main__":
    what, number = sys.argv[1], int(sys.argv[2])
    if what == "gather":
        print(gather(open_test_device(), number, checked=False)[64:66])
    else:
        print(exchange(open_test_device(), synced=bool(number))[:2])
