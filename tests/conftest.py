"""How all tests run: a slow machine is no fault of the code."""

import gc
from collections.abc import Iterator

import psutil
import pytest
from hypothesis import HealthCheck, settings

from luce.compute.fenced_memory import strays
from tests.heap import trim

pytest_plugins = ["tests.suite_traces"]

settings.register_profile("luce", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("luce")

LONG = (
    "model/test_system.py",
    "clients/test_load_generator.py",
    "sim/test_soak.py",
    "e2e/test_exact_answers.py",
    "e2e/test_matrix.py",
    "clients/test_schemathesis.py",
    "clients/test_python_clients.py",
    "e2e/test_traces.py",
    "kernels/test_gates.py",
    "kernels/test_sanitizers.py",
    "model/test_three_requests.py",
    "faults/test_cancellation.py",
    "replay/test_redrive.py",
    "browser/test_page.py",
    "browser/test_stall.py",
    "engines/device/test_device_engine.py",
    "engines/device/test_contract.py",
    "kernels/test_gemm_decode.py",
)
"""Modules that take long: they begin first, so that no process waits for them at the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def place(item: pytest.Item) -> int:
        path = item.path.as_posix()
        return next((at for at, name in enumerate(LONG) if path.endswith(f"tests/{name}")), len(LONG))

    items.sort(key=place)


@pytest.fixture(autouse=True)
def no_kernel_strays() -> Iterator[None]:
    """The host build of the kernels has written in nobody else's memory."""
    yield
    assert strays() == []


@pytest.fixture(autouse=True, scope="module")
def memory_goes_back() -> Iterator[None]:
    """Models of thousands of tests leave holes in the heap, which came to 9 GB in a process."""
    yield
    if psutil.Process().memory_info().rss > 1 << 30:
        gc.collect()
        trim()
