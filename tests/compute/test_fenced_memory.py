"""Writes of a kernel outside its arrays are found on the host build, whatever lies there."""

import ctypes

import numpy as np
import pytest

from luce.compute.fenced_memory import FENCE, aligned, strays, strays_of
from luce.compute.host_build import host_compiler
from luce.compute.host_device import HostDevice
from luce.engines.qwen35.device.sampler import DeviceSampler
from luce.errors import DeviceError


def poke(array: np.ndarray, offset: int) -> None:
    ctypes.memset(array.__array_interface__["data"][0] + offset, 0, 1)


@pytest.mark.parametrize("size", [0, 1, 255, 256, 257, 5000])
def test_a_byte_written_on_either_side_is_told_once(size: int) -> None:
    array = aligned(size, np.uint8)
    if size:
        array[:] = 7
    assert array.__array_interface__["data"][0] % FENCE == 0 and strays_of(array) is None and strays() == []
    poke(array, -4)
    assert strays_of(array[: size // 2]) == f"wrote 4 bytes before the start of an array of {size} bytes"
    poke(array, size + 3)
    assert strays() == [f"wrote 4 bytes past the end of an array of {size} bytes"]
    assert strays_of(array) is None and strays() == [] and (array == 7).all()


def test_what_was_written_beside_memory_that_is_freed_by_now() -> None:
    array = aligned((3, 5), np.float32)
    poke(array, 60)
    view = array[1:]
    del array
    assert strays() and not strays()
    poke(view, -21)
    del view
    assert strays() == ["wrote 1 bytes before the start of an array of 60 bytes"]


@pytest.mark.skipif(host_compiler() is None, reason="the host build of the kernels needs a C++ compiler")
def test_a_kernel_that_writes_outside_its_arrays_is_named() -> None:
    sampler = DeviceSampler(HostDevice(), 20, 4, 1)
    sampler.open(3)
    for slot, side in ((4, "past the end"), (-1, "before the start")):
        with pytest.raises(
            DeviceError, match=f"kernel sampler_clear wrote 80 bytes {side} of an array of 320"
        ):
            sampler.open(slot)
        strays()
    sampler.open(0)
