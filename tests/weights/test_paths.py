"""Paths that cannot be looked at, listed or read, and links that lead nowhere, are named; none is taken for absent."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from luce.errors import LuceError
from luce.weights.model_files import resolve_model
from tests.weights.writers import TinyShape, random_model, write_gguf, write_hf


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    model = random_model(TinyShape(num_layers=1, interval=1, vision_depth=1, mtp=False))
    write_hf(folder / "hf", model)
    write_gguf(folder / "gguf", model)
    return folder


@pytest.fixture
def locked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Path]]:
    """Directories in it may be neither listed nor looked into, files in it not read. (Root may do all of that, so
    permissions would not show it.)"""
    paths: list[Path] = []

    def refuse(path: Any, inside: bool) -> None:
        found = Path(path)
        if any(one in found.parents or (found == one and not inside) for one in paths):
            raise PermissionError(13, "Permission denied", str(path))

    real = {"stat": os.stat, "lstat": os.lstat, "scandir": os.scandir}

    def looking(name: str, inside: bool) -> Any:
        def look(path: Any, *rest: Any, **options: Any) -> Any:
            if not isinstance(path, int):
                refuse(path, inside)
            return real[name](path, *rest, **options)

        return look

    real_open = Path.open

    def reading(path: Path, *rest: Any, **options: Any) -> Any:
        refuse(path, False)
        return real_open(path, *rest, **options)

    monkeypatch.setattr(os, "stat", looking("stat", True))
    monkeypatch.setattr(os, "lstat", looking("lstat", True))
    monkeypatch.setattr(os, "scandir", looking("scandir", False))
    monkeypatch.setattr(Path, "open", reading)
    yield paths
    paths.clear()


def refusal(path: Path, mmproj: Path | None = None) -> str:
    with pytest.raises(LuceError) as caught:
        resolve_model(path, mmproj)
    return str(caught.value)


@pytest.mark.parametrize("form", ["hf", "gguf"])
def test_a_directory_that_may_not_be_looked_into(form: str, made: Path, locked: list[Path]) -> None:
    assert resolve_model(made / form).name
    locked.append(made / form)
    message = refusal(made / form)
    assert str(made / form) in message and message.endswith("cannot be read: Permission denied")
    message = refusal(made / "gguf" / "model.gguf") if form == "gguf" else refusal(made / "hf" / "inner")
    assert message.endswith("cannot be read: Permission denied")


def test_a_directory_that_may_not_be_listed_may_hold_a_vision_tower(made: Path, monkeypatch: Any) -> None:
    """The text model alone would be served without pictures, and nothing would say so."""

    def scandir(path: Any) -> Any:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "scandir", scandir)
    for path in (made / "gguf", made / "gguf" / "model.gguf"):
        assert refusal(path) == f"{made / 'gguf'}: cannot be listed: Permission denied"
    assert resolve_model(made / "gguf" / "model.gguf", made / "gguf" / "mmproj.gguf").mmproj is not None


@pytest.mark.parametrize(
    ("form", "name"),
    [
        ("gguf", "model.gguf"),
        ("gguf", "mmproj.gguf"),
        ("hf", "config.json"),
        ("hf", "model.safetensors"),
        ("hf", "tokenizer.json"),
        ("hf", "chat_template.jinja"),
        ("hf", "generation_config.json"),
    ],
)
def test_a_file_that_may_not_be_read(form: str, name: str, made: Path, locked: list[Path]) -> None:
    locked.append(made / form / name)
    assert refusal(made / form) == f"{made / form / name}: cannot be read: Permission denied"


def test_a_vision_tower_that_may_not_be_read_is_the_flag_s_fault(made: Path, locked: list[Path]) -> None:
    locked.append(made / "gguf" / "mmproj.gguf")
    message = refusal(made / "gguf" / "model.gguf", made / "gguf" / "mmproj.gguf")
    assert message.startswith("--mmproj: ") and message.endswith(
        "mmproj.gguf: cannot be read: Permission denied"
    )


def test_odd_paths(made: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.gguf"
    link.symlink_to("nowhere.gguf")
    assert refusal(link) == f"{link}: is a link to nowhere.gguf, which does not exist"
    assert refusal(tmp_path / "none") == f"{tmp_path / 'none'}: does not exist"
    assert "File name too long" in refusal(tmp_path / ("n" * 300 + ".gguf"))
    assert "null byte" in refusal(tmp_path / "a\0b.gguf")
    assert refusal(made / "gguf" / "model.gguf" / "x").endswith("does not exist")
    link.unlink()
    link.symlink_to(link)
    assert "cannot be read: " in refusal(link)


def test_a_file_that_is_no_gguf_says_so_however_short_it_is(tmp_path: Path) -> None:
    for data in (b"hi\n", b"GGU", b"half a page of text"):
        (tmp_path / "a.gguf").write_bytes(data)
        assert "is not a GGUF file (it does not start with 'GGUF')" in refusal(tmp_path / "a.gguf")
    (tmp_path / "a.gguf").write_bytes(b"GGUF\x03")
    assert "is truncated" in refusal(tmp_path / "a.gguf")
