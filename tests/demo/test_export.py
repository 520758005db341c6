"""The shipped GGUF pair and the Hugging Face directory made from it hold the same model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
from tokenizers import Tokenizer

from luce.demo.tasks import TASKS, make_case
from luce.engines.qwen35.loading import load_config, load_weights
from luce.weights.model_files import resolve_model
from tools.demo_model.export import NAME, SHIPPED, read_pair, write_hf, write_pair
from tools.demo_model.tensor_map import exact_log, steady
from tools.demo_model.text import IDS, MASK_ID, VOCAB_SIZE, encode, tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("hf")
    write_hf(SHIPPED, path)
    return path


def arrays(value: Any, path: str = "") -> dict[str, np.ndarray]:
    if isinstance(value, np.ndarray):
        return {path: value}
    if isinstance(value, tuple):
        return {k: v for i, item in enumerate(value) for k, v in arrays(item, f"{path}[{i}]").items()}
    if attrs.has(type(value)):
        names = [field.name for field in attrs.fields(type(value))]
        return {k: v for name in names for k, v in arrays(getattr(value, name), f"{path}.{name}").items()}
    return {}


def test_both_forms_load_to_the_same_bits(folder: Path) -> None:
    loaded = []
    for path in (SHIPPED / f"{NAME}.gguf", folder):
        files = resolve_model(path)
        loaded.append(arrays(load_weights(files, load_config(files))))
    gguf, hugging_face = loaded
    assert gguf.keys() == hugging_face.keys()
    assert sum(array.size for array in gguf.values()) > 12_000_000
    for name, array in gguf.items():
        assert array.tobytes() == hugging_face[name].tobytes(), name


def test_the_pair_is_made_again_from_its_own_values(tmp_path: Path) -> None:
    state, _ = read_pair(SHIPPED)
    write_pair(state, tmp_path)
    for path in tmp_path.iterdir():
        assert path.read_bytes() == (SHIPPED / path.name).read_bytes(), path.name


def test_the_files_are_small() -> None:
    assert sum(path.stat().st_size for path in SHIPPED.glob("*.gguf")) < 25_000_000


def test_the_card_tells_the_measured_accuracies() -> None:
    measured = json.loads((SHIPPED / "accuracy.json").read_text())["exact"]
    card = (SHIPPED / "CARD.md").read_text()
    for task, share in measured.items():
        assert f"| `{task}` |" in card
        row = next(line for line in card.splitlines() if line.startswith(f"| `{task}` |"))
        assert row.endswith(f"| {100 * share:.1f} % |"), row


def test_both_tokenizers_give_the_training_ids(folder: Path) -> None:
    theirs = Tokenizer.from_file(str(folder / "tokenizer.json"))
    for task in TASKS:
        text = make_case(task, 0, test=True).completion
        assert theirs.encode(text).ids == tokenizer().encode(text).ids
    odd = "<|im_start|>user\nnaïve e\u0301  don't 12,5\n\n<think> <tool_call>日本"
    assert theirs.encode(odd).ids == tokenizer().encode(odd).ids
    assert theirs.decode(theirs.encode(odd).ids, skip_special_tokens=False) == odd.replace("e\u0301", "é")


def test_the_mask_row_belongs_to_no_token() -> None:
    assert MASK_ID == VOCAB_SIZE - 1 == tokenizer().get_vocab_size()
    assert max(IDS.values()) == MASK_ID - 1


def test_every_prompt_fits_the_context() -> None:
    for task in TASKS:
        for index in range(25):
            prompt, completion = encode(make_case(task, index, test=True))
            assert len(prompt) + len(completion) <= 4096


def test_logarithms_give_their_exponentials_back() -> None:
    logs = steady(np.linspace(-3, 3, 1001, dtype=np.float32))
    assert np.array_equal(np.exp(exact_log(np.exp(logs))), np.exp(logs))
    with pytest.raises(ValueError, match="ssm_a"):
        exact_log(np.float32(3e8) + np.arange(64, dtype=np.float32) * 32)
