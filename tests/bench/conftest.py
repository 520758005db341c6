"""What the benchmarks' tests have in common."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    """The command freezes what is loaded, for good; other tests of this process want their garbage collected."""
    threshold = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*threshold)
