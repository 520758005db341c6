"""Kernels under the address and the thread sanitizer, on the host build with a thread for each thread of a block.

Small cases of the kernels' own tests, in a process for each sanitizer; and planted faults, which must be found.
"""

from __future__ import annotations

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from luce.compute.host_build import host_compiler
from luce.compute.host_device import HostDevice
from luce.errors import DeviceError
from tests.kernels.planted import BLOCKS, exchange, gather
from tests.kernels.sanitized import SANITIZERS, command, environment, missing

ROOT = Path(__file__).resolve().parents[2]
FOUND = 99
"""Exit code of a process in which a sanitizer found something."""
BOTH = (
    "test_device.py::test_a_block_works_together",
    "test_device.py::test_matrix_instruction",
    "test_norm.py::test_pointwise[8-SWIGLU]",
    "test_copies.py",
    "test_gemm_decode.py::test_products_are_added_to_the_residual[4]",
    "test_gemm_chain.py::test_a_small_chain",
)
CASES = {
    "address": (*BOTH, "test_attention.py::test_block_ids_outside_the_pool_are_caught[-1-True]"),
    "thread": (*BOTH, "test_deltanet.py::test_a_row_that_is_not_finite_shows"),
}


def under(sanitizer: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    if (why := missing(sanitizer)) is not None:
        pytest.skip(f"NO {sanitizer} SANITIZER: {why}")
    return subprocess.run(
        command(arguments),
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, **environment(sanitizer)},
        timeout=550,
    )


@pytest.mark.timeout(600)
@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_kernels_are_clean(sanitizer: str) -> None:
    nodes = [f"tests/kernels/{case}" for case in CASES[sanitizer]]
    done = under(
        sanitizer, "-m", "pytest", "-q", "-s", "-n0", "-p", "no:cacheprovider", "--timeout=500", *nodes
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said[-6000:]
    assert "skipped" not in said.lower() and said.count(".") >= len(nodes), said[-2000:]


def test_a_planted_block_id_outside_the_pool_is_found() -> None:
    good = under("address", "-m", "tests.kernels.planted", "gather", str(BLOCKS - 1))
    assert good.returncode == 0 and "[192. 193.]" in good.stdout, good.stderr[-2000:]
    for block in (BLOCKS, -1):
        done = under("address", "-m", "tests.kernels.planted", "gather", str(block))
        assert done.returncode == FOUND and "heap-buffer-overflow" in done.stderr, done.stderr[-2000:]
        assert "selftest_faults.cu" in done.stderr


def test_a_planted_race_is_found() -> None:
    good = under("thread", "-m", "tests.kernels.planted", "exchange", "1")
    assert good.returncode == 0 and "[32. 33.]" in good.stdout, good.stderr[-2000:]
    done = under("thread", "-m", "tests.kernels.planted", "exchange", "0")
    assert done.returncode == FOUND and "data race" in done.stderr, done.stderr[-2000:]
    assert "selftest_faults.cu" in done.stderr


def test_a_trap_says_what_is_wrong_and_where() -> None:
    if host_compiler() is None:
        pytest.skip("the host build of the kernels needs a C++ compiler (g++ or clang)")
    device = HostDevice()
    np.testing.assert_array_equal(gather(device, 3, checked=True)[64:], np.arange(192, 256))
    np.testing.assert_array_equal(exchange(device, synced=True), (np.arange(64) + 32) % 64)
    with pytest.raises(DeviceError, match=r"block \(1, 0, 0\), thread \d+: a block id outside the pool"):
        gather(device, 7, checked=True)


def test_blocks_of_several_threads_and_after_a_trap() -> None:
    """Fibers are kept from block to block; those of a block that failed stand in the middle of its kernel."""
    if host_compiler() is None:
        pytest.skip("the host build of the kernels needs a C++ compiler (g++ or clang)")
    device = HostDevice()
    kernel, out = device.kernel("selftest_faults.cu", "selftest_exchange"), device.empty(64, np.float32)

    def work(number: int) -> None:
        for turn in range(6):
            np.testing.assert_array_equal(exchange(device, synced=True), (np.arange(64) + 32) % 64)
            if (turn + number) % 2:
                with pytest.raises(DeviceError, match="the others wait"):
                    kernel((1, 1, 1), 64, [out, np.int32(2)], shared=256)
            np.testing.assert_array_equal(gather(device, 3, checked=True)[64:], np.arange(192, 256))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
