"""Where the traces are: short heads beside this file, longer ones where `LUCE_TEST_TRACES` says."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

__all__ = ["DATA", "EXHAUSTIVE", "long_traces"]

DATA = Path(__file__).parent / "data"
EXHAUSTIVE = os.environ.get("LUCE_TEST_EXHAUSTIVE") == "1"
"""Long runs, too."""


def long_traces() -> Path:
    """The folder of the longer heads; skips the test when there is none."""
    folder = os.environ.get("LUCE_TEST_TRACES")
    if not folder:
        pytest.skip("LUCE_TEST_TRACES names no folder with the longer traces (tests/sim/data/README.md)")
    return Path(folder)
