"""A tiny random model on disk, for tests of the whole program that need no right answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.server import ServerProcess, serving
from tests.weights.tiny_model import random_model
from tests.weights.writers import write_hf


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_hf(tmp_path_factory.mktemp("tiny") / "Tiny-VL", random_model())


@pytest.fixture(scope="module")
def tiny_server(tiny_model: Path) -> Iterator[ServerProcess]:
    with serving(tiny_model, "--name", "tiny", "--context", "2048", "--slots", "3") as server:
        yield server
