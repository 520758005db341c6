"""``luce inspect`` describes without loading; loading shows progress on a terminal and elsewhere."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from luce.cli.inspect import inspect_model
from luce.cli.loading_progress import loading_progress
from luce.engines.load_model import LoadOptions, open_model
from luce.engines.qwen35.loading import load_config, load_weights
from luce.engines.qwen35.memory import MemoryOptions, plan_memory
from luce.errors import ModelFileError
from luce.weights.model_files import resolve_model
from luce.weights.tensor_file import MappedTensors
from tests.weights.writers import MOE_SHAPE, TinyShape, random_model, write_gguf, write_hf

OPTIONS = LoadOptions(slots=2, context=100)


@pytest.mark.parametrize("form", ["hf", "gguf"])
def test_description(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_model()
    path = write_hf(tmp_path, model) if form == "hf" else write_gguf(tmp_path, model, quant="Q8_0").parent

    def no_data(self: MappedTensors, name: str) -> None:
        raise AssertionError("inspect reads headers only")

    monkeypatch.setattr(MappedTensors, "load", no_data)
    out = io.StringIO()
    inspect_model(path, OPTIONS, Console(file=out, width=60), tensors=True)
    text = out.getvalue()
    plan = plan_memory(load_config(resolve_model(path)), MemoryOptions(slots=2, context=100))
    for expected in (
        "4 (3 DeltaNet, 1 attention), 1 MTP, hidden 64",
        "280 tokens, 320 rows, separate head; stops at 266, 268",
        "yes: 2 blocks, hidden 32, patches of 8, image token 272",
        f"{plan.total:,} bytes",
        "lm_head.weight  BF16  [320, 64]" if form == "hf" else "output.weight  Q8_0  [320, 64]",
    ):
        assert expected in text


def test_a_mixture_of_experts(tmp_path: Path) -> None:
    out = io.StringIO()
    inspect_model(write_gguf(tmp_path, random_model(MOE_SHAPE)), OPTIONS, Console(file=out))
    assert "1 MTP, hidden 64, 3 of 6 experts of 32 and a shared one of 64\n" in out.getvalue()


def test_text_only(tmp_path: Path) -> None:
    out = io.StringIO()
    inspect_model(write_hf(tmp_path, random_model(TinyShape(vision=False))), OPTIONS, Console(file=out))
    assert "images      no" in out.getvalue()


def test_a_wrong_tensor_is_an_error(tmp_path: Path) -> None:
    model = random_model()
    del model.tensors["model.language_model.norm.weight"]
    with pytest.raises(ModelFileError, match=r"tensor 'model.language_model.norm.weight': missing"):
        inspect_model(write_hf(tmp_path, model), OPTIONS, Console(file=io.StringIO()))


@pytest.mark.parametrize("missing", ["tokenizer.json", "chat_template.jinja"])
def test_what_serving_needs_is_refused_in_its_words_after_the_description(
    tmp_path: Path, missing: str
) -> None:
    path = write_hf(tmp_path, random_model())
    (path / missing).unlink()
    with pytest.raises(ModelFileError) as serving:
        open_model(path, OPTIONS)
    out = io.StringIO()
    with pytest.raises(ModelFileError) as inspecting:
        inspect_model(path, OPTIONS, Console(file=out))
    assert str(inspecting.value) == str(serving.value)
    assert "memory      for 2 slots" in out.getvalue()


@pytest.mark.parametrize("terminal", [True, False])
def test_progress(terminal: bool, tmp_path: Path) -> None:
    files = resolve_model(write_hf(tmp_path, random_model()))
    config = load_config(files)
    out = io.StringIO()
    with loading_progress("tiny", Console(file=out, force_terminal=terminal, width=80)) as progress:
        load_weights(files, config, progress)
    if terminal:
        assert "loading tiny" in out.getvalue() and "\x1b[" in out.getvalue()
    else:
        lines = out.getvalue().splitlines()
        assert lines[-1] == "loading tiny: 100 %" and len(lines) <= 11 and len(set(lines)) == len(lines)
