"""From a path to the files of a model: what is found, what wins, what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from luce.errors import ConfigError, LuceError, ModelFileError
from luce.weights.model_files import FileForm, resolve_model
from luce.weights.sources import MAX_TEMPLATE_CHARS
from tests.weights.gguf_writers import (
    gguf_metadata,
    gguf_tensors,
    mmproj_metadata,
    mmproj_tensors,
    write_gguf_file,
)
from tests.weights.tiny_tokenizer import CHAT_TEMPLATE, MERGES, NUM_TOKENS, TOKEN_IDS
from tests.weights.writers import TinyShape, random_model, write_gguf, write_hf


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    model = random_model()
    write_hf(folder / "hf", model)
    write_gguf(folder / "gguf", model)
    return folder


@pytest.fixture
def hf(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made / "hf", tmp_path / "hf"))


@pytest.fixture
def gguf(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made / "gguf", tmp_path / "gguf"))


def test_hugging_face_directory(hf: Path) -> None:
    files = resolve_model(hf)
    assert files.form is FileForm.HUGGING_FACE and files.name == "hf" and files.mmproj is None
    tokenizer = files.require_tokenizer()
    assert tokenizer.path == hf / "tokenizer.json"
    assert tokenizer.json_text == (hf / "tokenizer.json").read_text()
    assert tokenizer.config["eos_token"] == "<|im_end|>" and tokenizer.tokens == []
    assert files.chat_template is not None and files.chat_template.text == CHAT_TEMPLATE
    assert files.generation.top_k == 20 and files.generation.eos_token_ids == (268, 266)
    source = files.preprocessor
    assert source is not None
    assert (source.patch_size, source.merge_size, source.temporal_patch_size) == (8, 2, 2)
    assert (source.min_pixels, source.max_pixels) == (1024, 16384)
    assert source.image_mean == source.image_std == (0.5, 0.5, 0.5)


@pytest.mark.parametrize("whole", [True, False])
def test_gguf_file_or_directory(whole: bool, gguf: Path, hf: Path) -> None:
    files = resolve_model(gguf if whole else gguf / "model.gguf")
    assert files.form is FileForm.GGUF and files.name == "Tiny"
    assert files.mmproj is not None and files.mmproj.path == gguf / "mmproj.gguf"
    tokenizer = files.require_tokenizer()
    assert tokenizer.json_text is None
    assert (tokenizer.model, tokenizer.pre, tokenizer.add_bos) == ("gpt2", "qwen35", False)
    assert len(tokenizer.tokens) == len(tokenizer.token_types) == 320
    assert tokenizer.tokens.index("<|im_end|>") == tokenizer.eos_id == TOKEN_IDS["<|im_end|>"]
    assert tokenizer.tokens[NUM_TOKENS] == f"[PAD{NUM_TOKENS}]" and tokenizer.token_types[NUM_TOKENS] == 5
    assert tokenizer.merges == list(MERGES)
    assert files.chat_template is not None and files.chat_template.text == CHAT_TEMPLATE
    expected = resolve_model(hf).preprocessor
    assert files.preprocessor is not None and expected is not None
    assert files.preprocessor.image_mean == expected.image_mean
    assert files.preprocessor.max_pixels == expected.max_pixels


def test_which_template_wins(hf: Path) -> None:
    config = json.loads((hf / "tokenizer_config.json").read_text())
    config["chat_template"] = "in the config"
    (hf / "tokenizer_config.json").write_text(json.dumps(config))
    (hf / "chat_template.json").write_text(json.dumps({"chat_template": "in json"}))

    def found() -> str | None:
        template = resolve_model(hf).chat_template
        return None if template is None else template.text

    assert found() == CHAT_TEMPLATE
    (hf / "chat_template.jinja").unlink()
    assert found() == "in json"
    (hf / "chat_template.json").unlink()
    assert found() == "in the config"
    config["chat_template"] = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
    (hf / "tokenizer_config.json").write_text(json.dumps(config))
    assert found() == "d"
    config["chat_template"] = config["chat_template"][:1]
    (hf / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(ModelFileError, match="chat_template is a list without 'default'"):
        found()
    del config["chat_template"]
    (hf / "tokenizer_config.json").write_text(json.dumps(config))
    assert found() is None


def test_a_huge_template_is_refused(hf: Path) -> None:
    (hf / "chat_template.jinja").write_text("x" * (MAX_TEMPLATE_CHARS + 1))
    with pytest.raises(
        ModelFileError, match=r"chat_template.jinja: the chat template has 1000001 characters"
    ):
        resolve_model(hf)


def test_processor_config_and_other_spellings(hf: Path) -> None:
    path = hf / "preprocessor_config.json"
    old = json.loads(path.read_text())
    expected = resolve_model(hf).preprocessor
    size = old.pop("size")
    path.unlink()
    for member in (
        old | {"size": size},
        old | {"min_pixels": size["shortest_edge"], "max_pixels": size["longest_edge"]},
        old | {"size": {"min_pixels": size["shortest_edge"], "max_pixels": size["longest_edge"]}},
    ):
        (hf / "processor_config.json").write_text(json.dumps({"image_processor": member, "size": {"x": 1}}))
        found = resolve_model(hf).preprocessor
        assert found is not None and expected is not None
        assert (found.min_pixels, found.max_pixels) == (expected.min_pixels, expected.max_pixels)
        assert found.path.name == "processor_config.json"


def test_mmproj_of_another_place(gguf: Path, tmp_path: Path) -> None:
    other = tmp_path / "elsewhere.gguf"
    (gguf / "mmproj.gguf").rename(other)
    assert resolve_model(gguf).mmproj is None and resolve_model(gguf).preprocessor is None
    found = resolve_model(gguf / "model.gguf", other).mmproj
    assert found is not None and found.path == other


def refusal(path: Path, mmproj: Path | None = None) -> str:
    with pytest.raises(LuceError) as caught:
        resolve_model(path, mmproj)
    assert isinstance(caught.value, ModelFileError | ConfigError)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_ambiguities_ask_for_a_choice(gguf: Path) -> None:
    shutil.copy(gguf / "mmproj.gguf", gguf / "mmproj-f16.gguf")
    assert "holds several vision towers (mmproj-f16.gguf, mmproj.gguf)" in refusal(gguf)
    assert refusal(gguf).startswith("--mmproj: ")
    assert resolve_model(gguf, gguf / "mmproj.gguf").mmproj is not None
    shutil.copy(gguf / "model.gguf", gguf / "model-b.gguf")
    assert "has 2 text models (model-b.gguf, model.gguf): name one of the files" in refusal(gguf)


def test_text_and_vision_in_one_file_is_refused_with_what_to_do(tmp_path: Path) -> None:
    """Ollama's layout (tensors are renamed, split and laid out anew), and the tensors of an mmproj as they are."""
    model = random_model()
    metadata, tensors = gguf_metadata(model), gguf_tensors(model)
    ollama = {name.replace("ssm_dt.bias", "ssm_dt"): values for name, values in tensors.items()}
    ollama |= {
        "v.blk.0.attn_q.weight": tensors["output_norm.weight"],
        "v.patch_embed.weight": ollama["blk.0.ssm_dt"],
    }
    keys = {"qwen35.vision.block_count": 2, "qwen35.image_token_id": TOKEN_IDS["<|image_pad|>"]}
    clip = {key: value for key, value in mmproj_metadata(model).items() if key.startswith("clip.")}
    for name, more, both in (
        ("ollama.gguf", keys, ollama),
        ("joined.gguf", clip, tensors | mmproj_tensors(model)),
        ("projector.gguf", {}, tensors | {"mm.0.weight": tensors["output_norm.weight"]}),
    ):
        folder = tmp_path / name.removesuffix(".gguf")
        folder.mkdir()
        write_gguf_file(folder / name, metadata | more, both)
        for path in (folder, folder / name):
            message = refusal(path)
            assert f"{folder / name}: holds a vision tower beside the text model" in message
            for advice in (
                "as Ollama writes it",
                "two files",
                "convert_hf_to_gguf.py",
                "--mmproj",
                "Hugging Face",
            ):
                assert advice in message
    write_gguf_file(tmp_path / "text.gguf", metadata, tensors)
    message = refusal(tmp_path / "text.gguf", tmp_path / "joined" / "joined.gguf")
    assert message.startswith("--mmproj: ") and "general.architecture is 'qwen35', not 'clip'" in message


def test_a_broken_neighbour_matters_only_if_it_is_the_vision_tower(gguf: Path) -> None:
    (gguf / "other.gguf").write_bytes(b"half a download")
    assert resolve_model(gguf / "model.gguf").mmproj is not None
    (gguf / "mmproj.gguf").write_bytes(b"half a download")
    assert f"{gguf / 'mmproj.gguf'}: is not a GGUF file" in refusal(gguf / "model.gguf")


def test_wrong_paths(gguf: Path, hf: Path, tmp_path: Path) -> None:
    assert "does not exist" in refusal(tmp_path / "none")
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "has neither config.json nor a .gguf file" in refusal(empty)
    assert "is neither a directory nor a .gguf file" in refusal(hf / "model.safetensors")
    assert "is a vision tower (mmproj), not a text model" in refusal(gguf / "mmproj.gguf")
    assert "is not a vision tower" in refusal(gguf, gguf / "model.gguf")
    assert "--mmproj: " in refusal(gguf, tmp_path / "none.gguf")
    assert "--mmproj: " in refusal(hf, gguf / "mmproj.gguf")
    (gguf / "model.gguf").unlink()
    assert "has only vision towers (mmproj.gguf)" in refusal(gguf)
    (hf / "model.safetensors").unlink()
    assert "has no safetensors weights" in refusal(hf)
    (hf / "model.safetensors").mkdir()
    assert "not a regular file" in refusal(hf)


def test_a_name_of_the_hub_is_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "hf download Qwen/Qwen3.5-4B --local-dir DIR" in refusal(Path("Qwen/Qwen3.5-4B"))
    for path in ("models", "models/a.gguf", "../models", "a/b/c"):
        assert refusal(Path(path)) == f"{path}: does not exist"
    (tmp_path / "Qwen" / "Qwen3.5-4B").mkdir(parents=True)
    assert "has neither config.json nor a .gguf file" in refusal(Path("Qwen/Qwen3.5-4B"))


def test_no_tokenizer_is_an_error_only_when_it_is_needed(hf: Path) -> None:
    (hf / "tokenizer.json").unlink()
    files = resolve_model(hf)
    with pytest.raises(ModelFileError, match=r"has no tokenizer \(tokenizer.json is"):
        files.require_tokenizer()


def test_a_cut_download_is_refused_quickly(gguf: Path) -> None:
    data = (gguf / "model.gguf").read_bytes()
    for size in range(0, len(data), len(data) // 10):
        (gguf / "model.gguf").write_bytes(data[:size])
        assert str(gguf / "model.gguf") in refusal(gguf / "model.gguf")


def test_split_parts_count_as_one_model(tmp_path: Path) -> None:
    path = write_gguf(tmp_path, random_model(TinyShape(vision=False)))
    path.rename(tmp_path / "m-00001-of-00002.gguf")
    assert "m-00002-of-00002.gguf: does not exist" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("name", "shown"), [(" A b ", "A b"), ("", "model"), ("a\nb", "model"), ("x" * 201, "model")]
)
def test_only_short_printable_names_are_shown(name: str, shown: str, tmp_path: Path) -> None:
    model = random_model(TinyShape(vision=False))
    write_gguf(tmp_path, model, metadata=gguf_metadata(model) | {"general.name": name})
    assert resolve_model(tmp_path).name == shown


@pytest.mark.parametrize(
    "name",
    [
        "generation_config.json",
        "tokenizer_config.json",
        "tokenizer.json",
        "preprocessor_config.json",
        "model.safetensors",
    ],
)
def test_a_link_that_leads_nowhere_is_not_an_absent_file(name: str, tmp_path: Path) -> None:
    """A download that broke off leaves such links; taking the file for absent would change defaults silently."""
    folder = write_hf(tmp_path / "hf", random_model())
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(tmp_path / "blobs" / "gone")
    with pytest.raises(ModelFileError, match=name):
        resolve_model(folder)
