"""Whatever a model's files hold, what is said about them is one short printable line."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from luce.engines.load_model import LoadOptions, open_model
from luce.errors import MAX_QUOTED, LuceError, ModelFileError, quoted, reason
from tests.weights.gguf_writers import (
    gguf_metadata,
    gguf_tensors,
    mmproj_metadata,
    mmproj_tensors,
    write_gguf_file,
)
from tests.weights.raw_gguf import GgufBytes
from tests.weights.writers import TinyModel, TinyShape, random_model, write_hf, write_safetensors

MOST = 600
"""Characters of a message beside the file's path: a sentence, and two or three quoted values."""

HOSTILE: dict[str, Any] = {
    "a megabyte": "x" * 1_000_000,
    "control characters": "a\x1b[31m\nb\r\u202e" * 50,
    "a long list": ["y" * 5_000] * 300,
    "numbers": list(range(3_000)),
    "a long object": {"z" * 5_000 + str(index): index for index in range(300)},
    "a deep object": json.loads('{"a":' * 100 + "1" + "}" * 100),
    "a huge number": 10**18,
}


@pytest.fixture(scope="module")
def model() -> TinyModel:
    return random_model(TinyShape(num_layers=2, interval=2, vision_depth=1))


def said(path: Path) -> str | None:
    """What opening the model says against it, without the paths of its files; None when it opens."""
    try:
        open_model(path, LoadOptions(slots=1, context=1024))
    except LuceError as error:
        assert isinstance(error, ModelFileError), repr(error)[:300]
        return str(error).replace(str(path), "").replace(str(path.parent), "")
    return None


def check(path: Path, what: str) -> bool:
    message = said(path)
    if message is not None:
        assert len(message) <= MOST, f"{what}: {len(message)} characters: {message[:300]} … {message[-300:]}"
        assert message.isprintable(), f"{what}: {message!r}"
    return message is not None


def places(value: Any, *way: Any) -> Iterator[tuple[Any, ...]]:
    """The way to every member of an object and to the first of every list."""
    if isinstance(value, dict):
        for key, entry in value.items():
            yield (*way, key)
            yield from places(entry, *way, key)
    elif isinstance(value, list) and value:
        yield (*way, 0)
        yield from places(value[0], *way, 0)


def put(root: Any, way: tuple[Any, ...], value: Any) -> Any:
    changed = copy.deepcopy(root)
    inner = changed
    for key in way[:-1]:
        inner = inner[key]
    inner[way[-1]] = value
    return changed


@pytest.mark.parametrize("case", [name for name, value in HOSTILE.items() if not isinstance(value, dict)])
def test_every_value_of_a_gguf(case: str, model: TinyModel, tmp_path: Path) -> None:
    value = HOSTILE[case]
    given = {"model.gguf": gguf_metadata(model), "mmproj.gguf": mmproj_metadata(model)}
    tensors = {"model.gguf": gguf_tensors(model), "mmproj.gguf": mmproj_tensors(model)}
    refused = 0
    for name, metadata in given.items():
        for other in given:
            write_gguf_file(tmp_path / other, given[other], tensors[other])
        assert said(tmp_path / "model.gguf") is None
        for key in metadata:
            change = value % 2**32 if isinstance(value, int) else value
            write_gguf_file(tmp_path / name, metadata | {key: change}, tensors[name])
            refused += check(tmp_path / "model.gguf", f"{name}: {key}")
    assert refused > 20


JSON_FILES = (
    "config.json",
    "generation_config.json",
    "preprocessor_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
)


@pytest.mark.parametrize("case", HOSTILE)
@pytest.mark.parametrize("name", JSON_FILES)
def test_every_value_of_a_json_file(case: str, name: str, model: TinyModel, tmp_path: Path) -> None:
    folder = write_hf(tmp_path, model)
    assert said(folder) is None
    root = json.loads((folder / name).read_text())
    root.get("model", {}).pop("merges", None)  # read by the library, and there are many
    vocabulary = root.get("model", {}).get("vocab", {})
    ways = [way for way in places(root) if len(way) < 3 or way[2] not in vocabulary]
    refused = 0
    for way in [*ways, *([("model", "vocab", next(iter(vocabulary)))] if vocabulary else [])]:
        (folder / name).write_text(json.dumps(put(root, way, HOSTILE[case])))
        refused += check(folder, f"{name}: {way}")
    assert refused or name == "tokenizer_config.json"


NAME = "n" * 60_000 + "\n"


@pytest.mark.parametrize("name", ["config.json", "added_tokens.json", "preprocessor_config.json"])
def test_names_in_a_json_file(name: str, model: TinyModel, tmp_path: Path) -> None:
    folder = write_hf(tmp_path, model)
    root = json.loads((folder / name).read_text()) if (folder / name).exists() else {}
    for way in [(), *(way for way in places(root))]:
        changed = copy.deepcopy(root)
        inner = changed
        for key in way:
            inner = inner[key]
        if isinstance(inner, dict):
            inner[NAME] = "value"
            (folder / name).write_text(json.dumps(changed))
            check(folder, f"{name}: {way}")
    if name == "added_tokens.json":
        assert said(folder) is not None


def test_names_in_weights(model: TinyModel, tmp_path: Path) -> None:
    folder = write_hf(tmp_path / "hf", model)
    values = next(iter(model.tensors.values()))
    write_safetensors(folder / "model.safetensors", model.tensors | {NAME: values}, "BF16")
    assert check(folder, "an unknown tensor")
    header = json.dumps({"__metadata__": {NAME: 1}}).encode()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    assert check(folder, "metadata")
    entry = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
    for change in (
        {"dtype": NAME},
        {"shape": NAME},
        {"shape": [10**40] * 2000},
        {"data_offsets": [NAME]},
        {NAME: 1},
    ):
        header = json.dumps({"w": entry | change}).encode()
        (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
        assert check(folder, str(change)[:40])
    twice = json.dumps(NAME)
    header = f"{{{twice}: 1, {twice}: 2}}".encode()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    assert check(folder, "a name twice")


@pytest.mark.parametrize(
    "part", [NAME, f"{NAME}.safetensors", "p" * 300 + ".safetensors", "a\0b.safetensors"]
)
def test_names_in_an_index(part: str, model: TinyModel, tmp_path: Path) -> None:
    folder = write_hf(tmp_path, model, shards=2)
    index = folder / "model.safetensors.index.json"
    for placed in ({"w": part}, {NAME: part}, {NAME: "model-00001-of-00002.safetensors"}):
        index.write_text(json.dumps({"weight_map": placed}))
        assert check(folder, str(placed)[:40])


@pytest.mark.parametrize("key", ["split.no", "split.count", "general.alignment"])
def test_values_that_are_read_early(key: str, model: TinyModel, tmp_path: Path) -> None:
    """Before the configuration is."""
    for name in ("m-00001-of-00002.gguf", "m-00002-of-00002.gguf"):
        for case in ("a megabyte", "numbers", "a long list"):
            write_gguf_file(tmp_path / "m-00001-of-00002.gguf", gguf_metadata(model), gguf_tensors(model))
            write_gguf_file(tmp_path / "m-00002-of-00002.gguf", {"general.architecture": "qwen35"}, {})
            metadata = {"general.architecture": "qwen35", key: HOSTILE[case]}
            write_gguf_file(tmp_path / name, metadata, {})
            assert check(tmp_path / "m-00001-of-00002.gguf", f"{name}: {key}")


def test_names_in_a_gguf(tmp_path: Path) -> None:
    key = "k" * 60_000
    for number, build in enumerate(
        (
            lambda file: (file.pair(key, 1), file.pair(key, 2)),
            lambda file: (file.string("", key), file.field("", 77, 4)),
            lambda file: (file.pair(key, "cut off"), file.string("", "then"), file.field("", 8, 4)),
        )
    ):
        file = GgufBytes()
        file.begin(tensors=0, keys=2)
        build(file)
        path = tmp_path / f"{number}.gguf"
        path.write_bytes(file.data)
        assert check(path, str(number))
    file = GgufBytes()
    file.begin(tensors=1, keys=1)
    file.pair("general.architecture", "qwen35")
    file.tensor("t\n" * 500, (4,), 4000, 0)
    (tmp_path / "t.gguf").write_bytes(file.data)
    assert check(tmp_path / "t.gguf", "a tensor")


@pytest.mark.parametrize(
    "template",
    ["{% " + "x" * 50_000 + " %}", "{{ raise_exception('" + "y" * 50_000 + "') }}", "{{ 1 +\x1b[31m }}"],
)
def test_templates(template: str, model: TinyModel, tmp_path: Path) -> None:
    folder = write_hf(tmp_path, model)
    (folder / "chat_template.jinja").write_text(template)
    assert check(folder, template[:20])


def test_quoted() -> None:
    assert quoted("yarn") == "'yarn'"
    assert len(quoted(10**400)) <= MAX_QUOTED and quoted(10**5000) == "a huge int"
    assert [quoted(value) for value in (3, 2.5, None, True, [1, "a"], {"a": 1})] == [
        "3",
        "2.5",
        "None",
        "True",
        "[1, 'a']",
        "{'a': 1}",
    ]
    for value in HOSTILE.values():
        assert len(quoted(value)) <= MAX_QUOTED and quoted(value).isprintable()
    assert quoted("x" * 1000).startswith("'xxx") and quoted("x" * 1000).endswith("xxx'")
    assert "…" in quoted("x" * 1000)


def test_reason() -> None:
    assert reason(ValueError("first\nsecond")) == "first"
    assert reason(ValueError()) == "ValueError"
    assert reason(RecursionError("maximum depth")) == "it is nested too deeply"
    assert len(reason(ValueError("x\x1b" * 1000))) <= 200 and reason(ValueError("x\x1b")).isprintable()
    assert reason(FileNotFoundError(2, "No such file or directory", "a" * 999)) == "No such file or directory"
