"""Where the traces are: short heads beside this file, longer ones where `LUCE_TRACES` says."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

__all__ = ["DATA", "long_traces"]

DATA = Path(__file__).parent / "data"


def long_traces() -> Path:
    """The folder of the longer heads; skips the test when there is none."""
    folder = os.environ.get("LUCE_TRACES")
    if not folder:
        pytest.skip("LUCE_TRACES names no folder with the longer traces (tests/sim/data/README.md)")
    return Path(folder)
