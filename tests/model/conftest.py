from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def no_collections() -> Iterator[None]:
    """A test's states are tuples without cycles, hundreds of thousands of them: looking for cycles takes as long as the
    exploration.
    """
    gc.disable()
    yield
    gc.enable()
