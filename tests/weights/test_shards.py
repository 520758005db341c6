"""Models in several files equal the same model in one, and disagreeing parts are refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from luce.errors import ModelFileError
from luce.weights.shards import INDEX_NAME, open_gguf_parts, open_safetensors_model
from tests.weights.raw_gguf import GgufBytes
from tests.weights.writers import TinyShape, random_model, write_hf, write_safetensors

SHAPE = TinyShape(vision=False, mtp=False)


def edit(path: Path, change: Callable[[dict[str, str]], object]) -> None:
    index = json.loads(path.read_text())
    change(index["weight_map"])
    path.write_text(json.dumps(index))


def test_sharded_equals_single(tmp_path: Path) -> None:
    model = random_model(SHAPE)
    one = open_safetensors_model(write_hf(tmp_path / "one", model))
    many = open_safetensors_model(write_hf(tmp_path / "many", model, shards=3))
    assert len({info.file for info in many.tensors.values()}) == 3
    assert set(one.tensors) == set(many.tensors)
    for name in one.tensors:
        assert one.load(name).tobytes() == many.load(name).tobytes()
        assert one.raw(name).tobytes() == many.raw(name).tobytes()
    with pytest.raises(ModelFileError, match=f"{INDEX_NAME}: tensor 'none': missing"):
        many.load("none")


def test_a_single_file_of_any_name_needs_no_index(tmp_path: Path) -> None:
    write_hf(tmp_path, random_model(SHAPE))
    (tmp_path / "model.safetensors").rename(tmp_path / "other.safetensors")
    assert "lm_head.weight" in open_safetensors_model(tmp_path).tensors


def test_several_files_without_index_are_refused(tmp_path: Path) -> None:
    write_hf(tmp_path, random_model(SHAPE), shards=2)
    (tmp_path / INDEX_NAME).unlink()
    with pytest.raises(ModelFileError, match="has 2 safetensors files but no model"):
        open_safetensors_model(tmp_path)
    for path in tmp_path.glob("*.safetensors"):
        path.unlink()
    with pytest.raises(ModelFileError, match="has no safetensors weights"):
        open_safetensors_model(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.clear(), "weight_map is missing, empty"),
        (lambda m: m.update(x="../model.safetensors"), "tensor 'x': weight_map entry '../model.safetensors'"),
        (lambda m: m.update(x="/etc/passwd"), "is not a plain file name"),
        (lambda m: m.update(x=7), "is not a plain file name"),
        (
            lambda m: m.update(x="model-00009-of-00009.safetensors"),
            "model-00009-of-00009.safetensors: does not",
        ),
        (lambda m: m.update(x="model-00001-of-00002.safetensors"), "tensor 'x': missing, but model.safetens"),
        (lambda m: m.pop("lm_head.weight"), "tensor 'lm_head.weight': is not in model.safetensors.index"),
        (
            lambda m: m.update({"lm_head.weight": "model-00001-of-00002.safetensors"}),
            "model-00001-of-00002.safetensors: tensor 'lm_head.weight': missing",
        ),
    ],
)
def test_an_index_that_disagrees_is_refused(
    change: Callable[[dict[str, str]], object], message: str, tmp_path: Path
) -> None:
    write_hf(tmp_path, random_model(SHAPE), shards=2)
    placed = json.loads((tmp_path / INDEX_NAME).read_text())["weight_map"]
    assert placed["lm_head.weight"] == "model-00002-of-00002.safetensors"
    edit(tmp_path / INDEX_NAME, change)
    with pytest.raises(ModelFileError) as caught:
        open_safetensors_model(tmp_path)
    assert message in str(caught.value)


def test_a_tensor_in_two_parts_is_refused(tmp_path: Path) -> None:
    model = random_model(SHAPE)
    write_hf(tmp_path, model, shards=2)
    chosen = dict(list(model.tensors.items())[::2]) | {"lm_head.weight": model.tensors["lm_head.weight"]}
    write_safetensors(tmp_path / "model-00001-of-00002.safetensors", chosen)
    with pytest.raises(ModelFileError, match=r"tensor 'lm_head.weight': is also in model-00001"):
        open_safetensors_model(tmp_path)


def part(path: Path, name: str, number: int | None, count: int = 2) -> Path:
    file = GgufBytes()
    file.begin(tensors=1, keys=1 if number is None else 3)
    file.pair("general.architecture", "test")
    if number is not None:
        file.pair("split.no", number)
        file.pair("split.count", count)
    file.tensor(name, (4,), 0, 0)
    file.pad()
    path.write_bytes(bytes(file.data) + bytes(16))
    return path


def test_a_split_gguf_is_one_file(tmp_path: Path) -> None:
    first = part(tmp_path / "m-00001-of-00002.gguf", "a", 0)
    second = part(tmp_path / "m-00002-of-00002.gguf", "b", 1)
    for path in (first, second):
        assert list(open_gguf_parts(path).tensors) == ["a", "b"]
    part(second, "a", 1)
    with pytest.raises(ModelFileError, match="tensor 'a': is also in m-00001"):
        open_gguf_parts(first)
    part(second, "b", 0)
    with pytest.raises(ModelFileError, match=r"m-00002-of-00002.gguf: split.no is 0, the file name says 1"):
        open_gguf_parts(first)
    second.unlink()
    with pytest.raises(ModelFileError, match=r"m-00002-of-00002.gguf: does not exist"):
        open_gguf_parts(first)
