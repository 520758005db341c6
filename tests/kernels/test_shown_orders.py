"""Kernels as racecheck sees them (SHOW_ORDERS), on the host build: right, and with as many arrivals as are waited for,
else they would stop."""

from __future__ import annotations

from typing import cast

import pytest

from luce.compute.device import Device
from luce.compute.host_build import host_compiler
from luce.compute.host_device import HostDevice
from tests.kernels import test_deltanet, test_gemm_decode, test_gemm_prefill
from tests.kernels.shown_orders import ShowingDevice
from tests.kernels.test_gemm_prefill import TILINGS


@pytest.fixture(scope="module")
def shown() -> Device:
    if host_compiler() is None:
        pytest.skip("the host build of the kernels needs a C++ compiler (g++ or clang)")
    return cast(Device, ShowingDevice(HostDevice()))


def test_products_of_few_rows(shown: Device) -> None:
    test_gemm_decode.test_products_are_added_to_the_residual(shown, 4)
    test_gemm_decode.test_who_does_the_work_changes_no_bit(shown, "Q4_K", 1)


@pytest.mark.parametrize(("name", "tiling"), [("Q5_K", TILINGS[1]), ("IQ4_XS", TILINGS[3])])
def test_products_of_many_rows(shown: Device, name: str, tiling: test_gemm_prefill.Tiling) -> None:
    test_gemm_prefill.test_writes_its_columns_alone(shown, name, 22, 28, tiling)


def test_chunks_of_the_deltanet(shown: Device) -> None:
    test_deltanet.test_a_lane_past_an_uncommitted_boundary_can_be_taken_back(shown)
    test_deltanet.test_state_order(shown)
