"""Weight products of bf16 (kernels/operands.h): tests of values and bits from the kernels' modules, on such a device.

The other tests take LUCE_TEST_OPERANDS=bf16, too.
"""

from __future__ import annotations

import numpy as np
import pytest

from luce.compute.device import Device
from luce.compute.operands import Operands
from tests.kernels.conftest import open_test_device
from tests.kernels.test_activation import test_producers_write_the_layout as test_producers_write_the_layout
from tests.kernels.test_embedding import (
    test_rows_of_packed_matrices_have_them_too as test_rows_of_packed_matrices_have_them_too,
)
from tests.kernels.test_gemm_chain import test_a_small_chain as test_a_small_chain
from tests.kernels.test_gemm_decode import (
    test_gate_and_up_become_activations as test_gate_and_up_become_activations,
)
from tests.kernels.test_gemm_decode import test_products_are_right as test_products_are_right
from tests.kernels.test_gemm_decode import (
    test_sums_can_be_made_by_the_product as test_sums_can_be_made_by_the_product,
)
from tests.kernels.test_gemm_prefill import (
    test_rows_have_the_bits_of_steps as test_rows_have_the_bits_of_steps,
)
from tests.kernels.test_gemm_prefill import (
    test_swiglu_has_the_bits_of_steps as test_swiglu_has_the_bits_of_steps,
)
from tests.kernels.test_gemm_tower import (
    test_gelus_write_the_next_products_inputs as test_gelus_write_the_next_products_inputs,
)
from tests.kernels.test_gemm_wide import (
    test_gate_and_up_become_activations_with_sums as test_gate_and_up_become_activations_with_sums,
)
from tests.kernels.test_matvec import matrix as matrix
from tests.kernels.test_matvec import test_weights_are_not_rounded as test_weights_are_not_rounded
from tests.kernels.test_moe import bench as bench
from tests.kernels.test_norm import test_rms_norm as test_rms_norm
from tests.kernels.test_packing import test_records_are_numpys as test_records_are_numpys
from tests.kernels.test_records import test_every_code_and_scale as test_every_code_and_scale
from tests.kernels.test_records import (
    test_records_hold_the_trees_weights as test_records_hold_the_trees_weights,
)
from tests.kernels.test_vision_rows import test_layer_norm as test_layer_norm


@pytest.fixture(scope="session")
def device() -> Device:
    return open_test_device(Operands.BF16)


def test_the_device_takes_them(device: Device) -> None:
    assert device.operands is Operands.BF16 and "products of" not in device.fingerprint
    assert Operands.of_device(device.fingerprint) is Operands.BF16
    other = open_test_device(Operands.F16)
    assert other.fingerprint.endswith(", products of f16")
    assert Operands.of_device(other.fingerprint) is Operands.F16


def test_what_is_held() -> None:
    """Up to a million; what is more becomes infinite, and its row fails."""
    most = np.float32(65504 * 16)
    x = np.array([most, most * np.float32(1.001), -2e6, 2**-20, 0.1, np.nan], np.float32)
    held = Operands.F16.rounded(x)
    assert (
        held[0] == most and held[1] == np.inf and held[2] == -np.inf and held[3] == x[3] and np.isnan(held[5])
    )
    assert abs(held[4] - x[4]) <= 2**-11 * x[4] < abs(Operands.BF16.rounded(x)[4] - x[4])
    weights = np.array([4094, 2**-20], np.float32)
    np.testing.assert_array_equal(Operands.F16.widen(Operands.F16.hold_weights(weights)) / 16, weights)
