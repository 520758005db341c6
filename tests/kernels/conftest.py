"""``device``: the host build by default; a GPU with LUCE_TEST_DEVICE=cuda. The same tests run on both, and on the host
build under a sanitizer with LUCE_TEST_DEVICE=host-address or host-thread (see `sanitized.py`). With cuda-apart each
array on a GPU is an allocation of its own, as compute-sanitizer wants it (see `compute_sanitizer.py`); with cuda-shown,
as its racecheck wants it, and host-shown kernels are built as there (see `shown_orders.py`). LUCE_TEST_OPERANDS=bf16:
products of bf16, on any of them."""

from __future__ import annotations

import os
from typing import cast

import pytest

from luce.compute.device import Device
from luce.compute.host_build import host_compiler
from luce.compute.host_device import HostDevice
from luce.compute.operands import DEFAULT_OPERANDS, Operands
from tests.kernels.shown_orders import ShowingDevice


def wanted_operands() -> Operands:
    return Operands(os.environ.get("LUCE_TEST_OPERANDS", DEFAULT_OPERANDS.value))


def open_test_device(operands: Operands | None = None) -> Device:
    operands = operands or wanted_operands()
    wanted = os.environ.get("LUCE_TEST_DEVICE", "host")
    if wanted in ("host-address", "host-thread"):
        from tests.kernels.sanitized import SanitizedDevice

        return SanitizedDevice(wanted.partition("-")[2], operands)
    if wanted == "host-shown":
        return cast(Device, ShowingDevice(HostDevice(operands=operands)))
    if wanted != "host":
        from luce.compute.cupy_device import open_device

        device = open_device(int(wanted.partition(":")[2] or 0), operands=operands)
        if wanted in ("cuda-apart", "cuda-shown"):
            device.cupy.cuda.set_allocator(None)
            device.options = ("-lineinfo",)
        return cast(Device, ShowingDevice(device)) if wanted == "cuda-shown" else device
    if host_compiler() is None:
        pytest.skip("the host build of the kernels needs a C++ compiler (g++ or clang)")
    return HostDevice(operands=operands)


@pytest.fixture(scope="session")
def device() -> Device:
    return open_test_device()
