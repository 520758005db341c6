"""One device engine for the contract tests of the numpy engine, and for those beside them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from luce.engines.qwen35.device.engine import DeviceEngine
from tests.engines import requests
from tests.engines.device.harness import bf16_model, new_device_engine


@pytest.fixture(scope="session")
def session_engine() -> Iterator[DeviceEngine]:
    engine = new_device_engine(*bf16_model())
    yield engine
    engine.shutdown()


@pytest.fixture(scope="module")
def shared_engine(session_engine: DeviceEngine) -> Iterator[DeviceEngine]:
    """In place of the numpy engine; what a request gives alone is computed on a device, too."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(requests, "new_engine", new_device_engine)
        patched.setattr(requests, "tiny_model", bf16_model)
        patched.setattr(requests, "_ALONE", {})
        yield session_engine
