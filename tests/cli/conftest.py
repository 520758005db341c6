"""A tiny random model on disk and loaded, and a picture."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from luce.engines.load_model import LoadOptions, load_model, open_model
from luce.engines.loaded import LoadedModel
from tests.weights.tiny_model import random_model
from tests.weights.writers import write_hf


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_hf(tmp_path_factory.mktemp("tiny"), random_model())


@pytest.fixture
def model(folder: Path) -> LoadedModel:
    return load_model(open_model(folder, LoadOptions(slots=2, context=1024)))


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    path = tmp_path / "picture.png"
    Image.new("RGB", (64, 48), (200, 30, 30)).save(path)
    return path
