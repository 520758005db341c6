"""Mapped files: views, and memory that is given back."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from luce.errors import ModelFileError
from luce.weights.safetensors_file import open_safetensors
from luce.weights.tensor_file import map_file
from tests.weights.writers import write_safetensors


def file_pages() -> int:
    """Bytes of file pages in this process."""
    found = re.search(r"RssFile:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def test_loading_leaves_no_file_pages_behind(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    size = 8 << 20
    rng = np.random.default_rng(0)
    tensors = {f"t{index}": rng.standard_normal(size // 4, dtype=np.float32) for index in range(4)}
    write_safetensors(path, tensors)
    file = open_safetensors(path)
    before = file_pages()
    assert file.raw("t0").sum() > 0
    assert file_pages() - before > size / 2, "reading through the map does take pages"
    for name, values in tensors.items():
        assert file.load(name).tobytes() == values.tobytes()
        assert file.load(name).tobytes() == values.tobytes(), "pages come back from the file"
    assert file_pages() - before < size / 4


def test_views_are_read_only_and_share_the_map(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    write_safetensors(path, {"t": np.arange(4, dtype=np.float32)})
    raw = open_safetensors(path).raw("t")
    with pytest.raises(ValueError, match="read-only"):
        raw[0] = 1
    assert raw.base is not None


def test_unreadable_paths(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="not a regular file"):
        map_file(Path("/dev/null"))
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with pytest.raises(ModelFileError, match="cannot be read"):
        map_file(loop)
