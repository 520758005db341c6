"""GGUF metadata: every key is checked, what luce does not serve is refused by name (B24, B113, B126)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from luce.engines.qwen35.config import Qwen35Config
from luce.engines.qwen35.loading import load_config
from luce.errors import ModelFileError
from luce.weights.model_files import resolve_model
from tests.weights.gguf_writers import (
    gguf_metadata,
    gguf_tensors,
    mmproj_metadata,
    mmproj_tensors,
    write_gguf,
    write_gguf_file,
)
from tests.weights.tiny_tokenizer import TOKEN_IDS
from tests.weights.writers import MOE_SHAPE, TinyModel, TinyShape, random_model, write_hf

Change = Callable[[dict[str, Any]], object]


@pytest.fixture(scope="module")
def model() -> TinyModel:
    return random_model(TinyShape(ratio=3))


def load(
    folder: Path, model: TinyModel, change: Change | None = None, *, vision: bool = False
) -> Qwen35Config:
    text, clip = gguf_metadata(model), mmproj_metadata(model)
    if change is not None:
        change(clip if vision else text)
    folder.mkdir(exist_ok=True)
    write_gguf_file(folder / "model.gguf", text, gguf_tensors(model))
    write_gguf_file(folder / "mmproj.gguf", clip, mmproj_tensors(model))
    return load_config(resolve_model(folder))


def refusal(folder: Path, model: TinyModel, change: Change, *, vision: bool = False) -> str:
    with pytest.raises(ModelFileError) as caught:
        load(folder, model, change, vision=vision)
    message = str(caught.value)
    assert "\n" not in message
    assert str(folder / ("mmproj.gguf" if vision else "model.gguf")) in message
    return message


def qwen(**values: Any) -> Change:
    return lambda metadata: metadata.update(
        {f"qwen35.{key.replace('__', '.')}": v for key, v in values.items()}
    )


def test_equal_to_the_hugging_face_configuration(model: TinyModel, tmp_path: Path) -> None:
    expected = load_config(resolve_model(write_hf(tmp_path / "hf", model)))
    assert load(tmp_path / "gguf", model) == expected
    assert expected.text.rms_eps == 1e-6, "float32 metadata reads as the decimal that was meant"


DEFAULTED = {
    "general.type",
    "general.name",
    "tokenizer.ggml.pre",
    "tokenizer.ggml.bos_token_id",
    "tokenizer.ggml.eos_token_id",
    "tokenizer.ggml.add_bos_token",
    "tokenizer.ggml.merges",
    "tokenizer.chat_template",
}
"""Keys that may be absent without a change of the configuration."""


def test_each_text_key_removed_is_named(model: TinyModel, tmp_path: Path) -> None:
    expected = load(tmp_path, model)
    for name in gguf_metadata(model):
        if name in DEFAULTED:
            assert load(tmp_path, model, lambda m, name=name: m.pop(name)) == expected  # type: ignore[misc]
        elif name == "tokenizer.ggml.token_type":
            assert load(tmp_path, model, lambda m: m.pop("tokenizer.ggml.token_type")).num_token_ids == 320
        elif name != "general.architecture":
            message = refusal(tmp_path, model, lambda m, name=name: m.pop(name))  # type: ignore[misc]
            assert name in message and "missing" in message


def test_each_vision_key_removed_is_named(model: TinyModel, tmp_path: Path) -> None:
    defaulted = {"general.type", "general.name", "clip.use_gelu", "clip.vision.is_deepstack_layers"}
    limits = {"clip.vision.image_min_pixels", "clip.vision.image_max_pixels"}
    expected = load(tmp_path, model)
    for name in mmproj_metadata(model):
        if name in defaulted:
            assert load(tmp_path, model, lambda m, name=name: m.pop(name), vision=True) == expected  # type: ignore[misc]
        elif name not in limits and name != "general.architecture":
            message = refusal(tmp_path, model, lambda m, name=name: m.pop(name), vision=True)  # type: ignore[misc]
            assert f"{name}: missing" in message


def test_pixel_limits_default_to_the_family_s(model: TinyModel, tmp_path: Path) -> None:
    load(
        tmp_path,
        model,
        lambda m: (m.pop("clip.vision.image_min_pixels"), m.pop("clip.vision.image_max_pixels")),
        vision=True,
    )
    source = resolve_model(tmp_path).preprocessor
    assert source is not None and (source.min_pixels, source.max_pixels) == (65_536, 16_777_216)


TEXT_REFUSALS: dict[str, tuple[Change, str]] = {
    "MoE": (lambda m: m.update({"general.architecture": "qwen35moe"}), "qwen35moe.block_count: missing"),
    "experts": (
        qwen(expert_count=8),
        "qwen35.expert_count: 8 is not supported: a dense model has no experts",
    ),
    "other": (lambda m: m.update({"general.architecture": "llama"}), "general.architecture: 'llama' is not"),
    "legacy": (lambda m: m.update({"general.architecture": "qwen3next"}), "'qwen3next' is not served"),
    "yarn": (qwen(rope__scaling__type="yarn"), "qwen35.rope.scaling.type: 'yarn' is not supported"),
    "linear": (qwen(rope__scaling__type="linear"), "qwen35.rope.scaling.type: 'linear'"),
    "factor": (qwen(rope__scaling__factor=4.0), "qwen35.rope.scaling.factor: 4.0"),
    "contiguous": (qwen(rope__mrope_interleaved=False), "qwen35.rope.mrope_interleaved"),
    "grouped": (qwen(ssm__v_head_reordered=False), "qwen35.ssm.v_head_reordered"),
    "K and V": (qwen(attention__value_length=16), "attention.value_length: is not attention.key_length, 32"),
    "sections": (qwen(rope__dimension_sections=[2, 2, 1, 0]), "[2, 2, 1] does not sum to 4"),
    "four sections": (qwen(rope__dimension_sections=[1, 1, 1, 1]), "is not [t, h, w] or [t, h, w, 0]"),
    "rotary": (qwen(rope__dimension_count=64), "rope.dimension_count: gives 64 rotated dims"),
    "Hv % Hk": (
        qwen(ssm__time_step_rank=5, ssm__inner_size=80),
        "ssm.time_step_rank: 5 is not a multiple of the 2",
    ),
    "inner": (qwen(ssm__inner_size=97), "ssm.inner_size: 97 is not a multiple"),
    "heads": (qwen(attention__head_count_kv=3), "head_count_kv: 3 does not divide the 4 query heads"),
    "layers": (qwen(block_count=2**31), "qwen35.block_count: 2147483648 is not in 1 … 512"),
    "nextn": (qwen(nextn_predict_layers=5), "nextn_predict_layers: 5 leaves no main layer of 5"),
    "type": (qwen(embedding_length="64"), "qwen35.embedding_length: '64' is not an integer"),
    "array length": (qwen(attention__head_count_kv=[2, 2]), "head_count_kv: has 2 entries, expected 5"),
    "array differs": (qwen(attention__head_count_kv=[0, 0, 0, 2, 4]), "differs between layers (2, 4)"),
    "array of zero": (qwen(attention__head_count=[0, 0, 0, 0, 0]), "attention.head_count: 0 is not in"),
    "recurrent": (qwen(attention__recurrent_layers=[1, 1, 1, 0, 0]), "is not a list of bools"),
    "vocabulary": (qwen(vocab_size=100), "vocab_size: is not the number of token_embd rows, 320"),
    "tokens": (
        lambda m: (m["tokenizer.ggml.tokens"].pop(), m["tokenizer.ggml.token_type"].pop()),
        "tokenizer.ggml.tokens has 319 entries, token_embd 320 rows",
    ),
    "types": (lambda m: m["tokenizer.ggml.token_type"].pop(), "token_type has 319 entries for 320 tokens"),
    "eos": (lambda m: m.update({"tokenizer.ggml.eos_token_id": 320}), "eos_token_id: 320 is not in"),
    "image pad": (
        lambda m: m["tokenizer.ggml.tokens"].__setitem__(TOKEN_IDS["<|image_pad|>"], "<|other|>"),
        "<|image_pad|> is missing as a control token",
    ),
    "template": (
        lambda m: m.update({"tokenizer.chat_template": "x" * 1_000_001}),
        "the chat template has 1000001",
    ),
}


@pytest.mark.parametrize("case", TEXT_REFUSALS)
def test_text_refusals(case: str, model: TinyModel, tmp_path: Path) -> None:
    change, message = TEXT_REFUSALS[case]
    assert message in refusal(tmp_path, model, change)


def clip(key: str, value: Any) -> Change:
    return lambda metadata: metadata.update({f"clip.{key}": value})


VISION_REFUSALS: dict[str, tuple[Change, str]] = {
    "deepstack": (
        clip("vision.is_deepstack_layers", [False, True]),
        "clip.vision.is_deepstack_layers: extra",
    ),
    "projector": (clip("projector_type", "qwen2vl_merger"), "clip.projector_type: 'qwen2vl_merger' is not"),
    "no encoder": (clip("has_vision_encoder", False), "clip.has_vision_encoder: is false"),
    "no gelu": (clip("use_gelu", False), "clip.use_gelu: False is not supported"),
    "width": (clip("vision.projection_dim", 65), "projection_dim: 65 is not the text model's hidden size 64"),
    "image size": (clip("vision.image_size", 40), "image_size: 40 is not 6 patches of 8"),
    "heads": (clip("vision.attention.head_count", 3), "attention.head_count: 3 heads of 32 dims"),
    "mean": (clip("vision.image_mean", [0.5, 0.5]), "clip.vision.image_mean: has 2 entries, expected 3"),
    "pixels": (
        clip("vision.image_min_pixels", 2**31),
        "image_min_pixels: 2147483648 is above image_max_pixels",
    ),
    "blocks": (clip("vision.block_count", 0), "clip.vision.block_count: 0 is not in"),
}


@pytest.mark.parametrize("case", VISION_REFUSALS)
def test_vision_refusals(case: str, model: TinyModel, tmp_path: Path) -> None:
    change, message = VISION_REFUSALS[case]
    assert message in refusal(tmp_path, model, change, vision=True)


def test_per_layer_arrays_and_recurrent_layers(model: TinyModel, tmp_path: Path) -> None:
    """Other exporters write one number per block, 0 where a block has no attention, and a bool per block."""
    expected = load(tmp_path, model)

    def change(metadata: dict[str, Any]) -> None:
        del metadata["qwen35.full_attention_interval"]
        qwen(
            attention__head_count=[4, 4, 4, 4, 4],
            attention__head_count_kv=[0, 0, 0, 2, 2],
            feed_forward_length=[96] * 5,
            attention__recurrent_layers=[True, True, True, False, False],
            rope__dimension_sections=[2, 1, 1],
        )(metadata)

    assert load(tmp_path, model, change) == expected


def test_projector_type_of_mixed_files(model: TinyModel, tmp_path: Path) -> None:
    def change(metadata: dict[str, Any]) -> None:
        metadata["clip.vision.projector_type"] = metadata.pop("clip.projector_type")

    assert load(tmp_path, model, change, vision=True) == load(tmp_path, model)


def test_sampling_defaults(model: TinyModel, tmp_path: Path) -> None:
    metadata = gguf_metadata(model) | {"general.sampling.temp": 0.7, "general.sampling.top_k": 20}
    write_gguf(tmp_path, model, metadata=metadata)
    generation = resolve_model(tmp_path).generation
    assert (generation.temperature, generation.top_k, generation.top_p) == (0.7, 20, None)


def test_a_vision_tower_needs_the_tokens(model: TinyModel, tmp_path: Path) -> None:
    def change(metadata: dict[str, Any]) -> None:
        for name in [name for name in metadata if name.startswith("tokenizer.")]:
            del metadata[name]

    with pytest.raises(ModelFileError, match=r"(eos_token_id|tokenizer.ggml.tokens).*missing"):
        load(tmp_path, model, change)


def experts(**values: Any) -> Change:
    return lambda metadata: metadata.update(
        {f"qwen35moe.{key.replace('__', '.')}": v for key, v in values.items()}
    )


MOE_REFUSALS: dict[str, tuple[Change, str]] = {
    "too many": (
        experts(expert_used_count=7),
        "qwen35moe.expert_used_count: 7 of 6 experts cannot be chosen",
    ),
    "no experts": (experts(expert_count=0), "qwen35moe.expert_count: 0 is not in 1"),
    "sigmoid": (experts(expert_gating_func=2), "qwen35moe.expert_gating_func: 2 is not supported"),
    "weights as they are": (experts(expert_weights_norm=False), "qwen35moe.expert_weights_norm: False"),
    "scale": (experts(expert_weights_scale=2.5), "qwen35moe.expert_weights_scale: 2.5"),
    "groups": (experts(expert_group_count=8), "qwen35moe.expert_group_count: 8"),
    "dense layers": (experts(leading_dense_block_count=1), "qwen35moe.leading_dense_block_count: 1"),
}


@pytest.mark.parametrize("case", MOE_REFUSALS)
def test_refusals_of_a_mixture(case: str, tmp_path: Path) -> None:
    change, message = MOE_REFUSALS[case]
    assert message in refusal(tmp_path, random_model(MOE_SHAPE), change)


def test_a_mixture_of_experts(tmp_path: Path) -> None:
    model = random_model(MOE_SHAPE)
    expected = load_config(resolve_model(write_hf(tmp_path / "hf", model)))
    assert expected.text.moe is not None and load(tmp_path / "gguf", model) == expected
    said = experts(expert_gating_func=1, expert_weights_norm=True, feed_forward_length=5632)
    assert load(tmp_path / "gguf", model, said) == expected
    for name in ("count", "used_count", "feed_forward_length", "shared_feed_forward_length"):
        key = f"qwen35moe.expert_{name}"
        message = refusal(tmp_path / "gguf", model, lambda m, key=key: m.pop(key))  # type: ignore[misc]
        assert f"{key}: missing" in message
