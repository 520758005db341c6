from __future__ import annotations

import json
from pathlib import Path

import pytest

from luce.engines.load_model import LoadOptions, demo_model, open_model
from luce.errors import ConfigError, ModelFileError
from tests.weights.gguf_writers import gguf_metadata, write_gguf
from tests.weights.tiny_model import random_model
from tests.weights.writers import write_hf


def test_a_pool_that_cannot_hold_one_sequence_is_refused() -> None:
    """It would refuse every request that leaves max_tokens out, the server's own example among them."""
    with pytest.raises(
        ConfigError, match=r"--blocks: 8 blocks of 64 hold 512 tokens, less than one sequence of 4096"
    ):
        open_model(demo_model(), LoadOptions(num_blocks=8))
    assert open_model(demo_model(), LoadOptions(num_blocks=8, context=512)).plan.options.blocks == 8


def test_the_bundled_model_is_greedy_unless_told_otherwise() -> None:
    defaults = open_model(demo_model(), LoadOptions()).defaults
    assert (defaults.temperature, defaults.source("temperature")) == (0.0, "general.sampling.temp")


def test_sampling_is_said_by_flags_then_files_then_family_then_luce(tmp_path: Path) -> None:
    folder = write_hf(tmp_path / "m", random_model())
    file = folder / "generation_config.json"
    file.write_text(json.dumps({"eos_token_id": 268, "temperature": 0.7, "top_p": 0.8}))
    opened = open_model(folder, LoadOptions(sampling={"top_p": 0.5, "presence_penalty": 1.5}))
    assert {
        name: (value, opened.defaults.source(name)) for name, value in opened.defaults.values.items()
    } == {
        "temperature": (0.7, "generation_config.json: temperature"),
        "top_k": (20, "the family's (Qwen3.5)"),
        "top_p": (0.5, "--top-p"),
        "min_p": (0.0, "built-in"),
        "repetition_penalty": (1.0, "built-in"),
        "presence_penalty": (1.5, "--presence-penalty"),
        "frequency_penalty": (0.0, "built-in"),
    }
    assert "top_k               20     the family's (Qwen3.5)" in opened.defaults.lines()
    file.write_text(json.dumps({"eos_token_id": 268, "temperature": 0.7, "do_sample": False}))
    greedy = open_model(folder, LoadOptions()).defaults
    assert (greedy.temperature, greedy.source("temperature")) == (
        0.0,
        "generation_config.json: do_sample false",
    )


@pytest.mark.parametrize("name", ["top_p", "repetition_penalty"])
def test_files_cannot_recommend_what_every_request_would_be_refused_for(tmp_path: Path, name: str) -> None:
    folder = write_hf(tmp_path / "m", random_model())
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 268, name: 0.0}))
    with pytest.raises(
        ModelFileError, match=f"generation_config.json: {name}: {name} must be greater than 0"
    ):
        open_model(folder, LoadOptions())


def test_a_gguf_may_say_that_top_k_is_off(tmp_path: Path) -> None:
    """Written as -1 by some converters."""
    model = random_model()
    said = {"general.sampling.top_k": -1, "general.sampling.penalty_repeat": 1.1}
    write_gguf(tmp_path, model, metadata=gguf_metadata(model) | said)
    defaults = open_model(tmp_path, LoadOptions()).defaults
    assert (defaults.top_k, defaults.source("top_k")) == (-1, "general.sampling.top_k")
    assert defaults.source("repetition_penalty") == "general.sampling.penalty_repeat"
