"""config.json: every field is checked, what luce does not serve is refused by name (B24, B36, B126)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from luce.engines.qwen35.config import MoeConfig, Qwen35Config
from luce.engines.qwen35.loading import load_config
from luce.errors import ModelFileError
from luce.weights.model_files import resolve_model
from tests.weights.tiny_tokenizer import TOKEN_IDS
from tests.weights.writers import MOE_SHAPE, TinyModel, TinyShape, random_model, write_hf

Change = Callable[[dict[str, Any]], object]


@pytest.fixture(scope="module")
def model() -> TinyModel:
    return random_model(TinyShape(num_layers=4))


@pytest.fixture
def folder(model: TinyModel, tmp_path: Path) -> Path:
    return write_hf(tmp_path, model)


def edit(path: Path, change: Change) -> None:
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def load(folder: Path, change: Change | None = None) -> Qwen35Config:
    if change is not None:
        edit(folder / "config.json", change)
    return load_config(resolve_model(folder))


def refusal(folder: Path, change: Change | None = None) -> str:
    with pytest.raises(ModelFileError) as caught:
        load(folder, change)
    message = str(caught.value)
    assert "\n" not in message and str(folder) in message
    return message


def text(**values: Any) -> Change:
    return lambda config: config["text_config"].update(values)


def vision(**values: Any) -> Change:
    return lambda config: config["vision_config"].update(values)


def rope(**values: Any) -> Change:
    return lambda config: config["text_config"]["rope_parameters"].update(values)


def test_values(folder: Path) -> None:
    config = load(folder)
    assert config.text.hidden == 64 and config.text.head_dim == 32 and config.text.rotary_dim == 8
    assert config.text.full_attention == (False, False, False, True)
    assert config.text.rope_theta == 1e7 and config.text.mrope_section == (2, 1, 1)
    assert config.text.conv_channels == 2 * 2 * 16 + 4 * 16
    assert config.vision is not None and config.vision.grid_side == 6
    assert config.eos_token_ids == (TOKEN_IDS["<|endoftext|>"], TOKEN_IDS["<|im_end|>"])
    assert config.image_token_id == TOKEN_IDS["<|image_pad|>"]
    assert config.num_token_ids == len(TOKEN_IDS) + 266


REQUIRED = {
    "": {"model_type", "text_config", "image_token_id", "vision_start_token_id", "vision_end_token_id"},
    "text_config": {
        "vocab_size",
        "hidden_size",
        "num_hidden_layers",
        "intermediate_size",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "linear_num_key_heads",
        "linear_num_value_heads",
        "linear_key_head_dim",
        "linear_value_head_dim",
        "linear_conv_kernel_dim",
        "max_position_embeddings",
        "rms_norm_eps",
    },
    "text_config.rope_parameters": {"rope_type", "rope_theta", "partial_rotary_factor", "mrope_section"},
    "vision_config": {
        "depth",
        "hidden_size",
        "num_heads",
        "intermediate_size",
        "patch_size",
        "temporal_patch_size",
        "spatial_merge_size",
        "num_position_embeddings",
        "out_hidden_size",
    },
}


def at(config: dict[str, Any], where: str) -> dict[str, Any]:
    for name in filter(None, where.split(".")):
        config = config[name]
    return config


@pytest.mark.parametrize("where", REQUIRED)
def test_each_key_removed_is_named_or_has_a_sanctioned_default(
    where: str, model: TinyModel, tmp_path: Path
) -> None:
    write_hf(tmp_path, model)
    expected = load(tmp_path)
    good = (tmp_path / "config.json").read_text()
    for name in at(json.loads(good), where):
        (tmp_path / "config.json").write_text(good)
        if name in REQUIRED[where]:
            message = refusal(tmp_path, lambda config, name=name: at(config, where).pop(name))  # type: ignore[misc]
            assert f"config.json: {where}{'.' if where else ''}{name}: missing" in message
        elif name not in ("vision_config", "mtp_num_hidden_layers", "rope_parameters"):
            assert load(tmp_path, lambda config, name=name: at(config, where).pop(name)) == expected  # type: ignore[misc]


REFUSALS: dict[str, tuple[Change, str]] = {
    "MoE": (lambda c: c.update(model_type="qwen3_5_moe"), "text_config.model_type: 'qwen3_5_text'"),
    "MoE text": (text(model_type="qwen3_5_moe_text"), "text_config.model_type: 'qwen3_5_moe_text'"),
    "experts": (text(num_experts=8), "text_config.num_experts: a dense model has no experts"),
    "other model": (lambda c: c.update(model_type="llama"), "model_type: 'llama' is not served"),
    "Qwen3-Next": (lambda c: c.update(model_type="qwen3_next"), "model_type: 'qwen3_next' is not served"),
    "deepstack": (vision(deepstack_visual_indexes=[1]), "vision_config.deepstack_visual_indexes"),
    "FP8": (
        lambda c: c.update(quantization_config={"quant_method": "fp8"}),
        "quantization_config: quantised safetensors (method 'fp8')",
    ),
    "FP8 text": (text(quantization_config={"quant_method": "gptq"}), "text_config.quantization_config"),
    "bias": (text(attention_bias=True), "text_config.attention_bias: True is not supported"),
    "act": (text(hidden_act="gelu"), "text_config.hidden_act: 'gelu' is not supported: only silu"),
    "vision act": (vision(hidden_act="silu"), "vision_config.hidden_act"),
    "no gate": (text(attn_output_gate=False), "text_config.attn_output_gate"),
    "gate": (text(output_gate_type="sigmoid"), "text_config.output_gate_type"),
    "state": (text(mamba_ssm_dtype="bfloat16"), "text_config.mamba_ssm_dtype"),
    "MTP embedding": (text(mtp_use_dedicated_embeddings=True), "mtp_use_dedicated_embeddings"),
    "sliding": (text(use_sliding_window=True), "use_sliding_window"),
    "yarn": (rope(rope_type="yarn", factor=4.0), "text_config.rope_parameters.rope_type: 'yarn' is not supp"),
    "linear": (rope(rope_type="linear"), "rope_parameters.rope_type: 'linear'"),
    "unknown rope": (rope(rope_type="spiral"), "rope_parameters.rope_type: 'spiral'"),
    "old key in new": (rope(type="yarn"), "rope_parameters.type: 'yarn'"),
    "factor alone": (rope(factor=2.0), "rope_parameters.factor: is not supported"),
    "contiguous": (rope(mrope_interleaved=False), "rope_parameters.mrope_interleaved"),
    "section": (rope(mrope_section=[2, 2, 1]), "mrope_section: [2, 2, 1] does not sum to 4"),
    "section short": (rope(mrope_section=[2, 2]), "mrope_section: has 2 entries, expected 3"),
    "odd rotary": (rope(partial_rotary_factor=0.1), "partial_rotary_factor: gives 3 rotated dims"),
    "theta": (rope(rope_theta="1e7"), "rope_parameters.rope_theta: '1e7' is not a number"),
    "Hv % Hk": (
        text(linear_num_key_heads=3),
        "linear_num_value_heads: 4 is not a multiple of the 3 key heads",
    ),
    "H % Hkv": (text(num_key_value_heads=3), "num_key_value_heads: 3 does not divide the 4 query heads"),
    "absurd layers": (text(num_hidden_layers=10**9), "num_hidden_layers: 1000000000 is not in 1 … 512"),
    "absurd width": (text(hidden_size=2**63), "hidden_size: 9223372036854775808 is not in"),
    "zero": (text(intermediate_size=0), "intermediate_size: 0 is not in"),
    "float": (text(hidden_size=64.0), "hidden_size: 64.0 is not an integer"),
    "bool": (text(hidden_size=True), "hidden_size: True is not an integer"),
    "eps": (text(rms_norm_eps=1.0), "rms_norm_eps: 1.0 is not in"),
    "types length": (text(layer_types=["full_attention"]), "layer_types: has 1 entries, expected 4"),
    "types": (text(layer_types=["sliding_attention"] * 4), "layer_types[0]: 'sliding_attention'"),
    "tie": (lambda c: c.update(tie_word_embeddings="yes"), "tie_word_embeddings: 'yes' is not true or false"),
    "table": (vision(num_position_embeddings=35), "num_position_embeddings: 35 is not a square"),
    "vision heads": (vision(num_heads=3), "vision_config.num_heads: 3 heads of 32 dims"),
    "vision width": (
        vision(out_hidden_size=65),
        "out_hidden_size: 65 is not the text model's hidden size 64",
    ),
    "channels": (vision(in_channels=1), "vision_config.in_channels"),
    "patch": (vision(patch_size=16), "preprocessor_config.json: patch_size: 8, but the vision tower has 16"),
    "id range": (lambda c: c.update(image_token_id=320), "image_token_id: 320 is not in 0 … 319"),
    "ids equal": (
        lambda c: c.update(vision_start_token_id=c["image_token_id"]),
        "are not distinct",
    ),
    "id conflict": (
        lambda c: c.update(image_token_id=5),
        f"image_token_id: 5, but the tokenizer gives <|image_pad|> the id {TOKEN_IDS['<|image_pad|>']}",
    ),
    "eos range": (text(eos_token_id=320), "eos_token_id 320 is outside the vocabulary"),
    "vocabulary": (text(vocab_size=200), "has ids up to 279, the embedding only 200 rows"),
    "tie nowhere": (
        lambda c: (c.pop("tie_word_embeddings"), c["text_config"].pop("tie_word_embeddings")),
        "text_config.tie_word_embeddings: missing",
    ),
    "not an object": (lambda c: c.update(text_config=[]), "text_config: [] is not an object"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refusals(case: str, folder: Path) -> None:
    change, message = REFUSALS[case]
    assert message in refusal(folder, change)


def old_spelling(**scaling: Any) -> Change:
    def change(config: dict[str, Any]) -> None:
        part = config["text_config"]
        values = part.pop("rope_parameters")
        part["rope_theta"] = values.pop("rope_theta")
        part["partial_rotary_factor"] = values.pop("partial_rotary_factor")
        part["rope_scaling"] = values | scaling

    return change


def test_old_rope_spelling_is_read(folder: Path) -> None:
    expected = load(folder)
    assert load(folder, old_spelling()) == expected


@pytest.mark.parametrize("kind", ["yarn", "linear", "spiral"])
def test_old_rope_spelling_is_checked(kind: str, folder: Path) -> None:
    assert f"rope_scaling.rope_type: '{kind}'" in refusal(folder, old_spelling(rope_type=kind, factor=2.0))


def test_contradicting_spellings_are_refused(folder: Path) -> None:
    assert "rope_parameters.rope_theta: 10000000, but 10000.0" in refusal(folder, text(rope_theta=10000.0))


def test_interval_stands_in_for_layer_types(folder: Path) -> None:
    expected = load(folder)
    assert load(folder, lambda c: c["text_config"].pop("layer_types")) == expected
    found = load(folder, text(full_attention_interval=2))
    assert found.text.full_attention == (False, True, False, True)


def test_text_only(tmp_path: Path) -> None:
    config = load(write_hf(tmp_path, random_model(TinyShape(vision=False))))
    assert config.vision is None and config.image_token_id is None


def test_stop_ids_come_from_every_file(folder: Path) -> None:
    end, text_end = TOKEN_IDS["<|im_end|>"], TOKEN_IDS["<|endoftext|>"]
    (folder / "generation_config.json").unlink()
    assert load(folder).eos_token_ids == (text_end, end), "the chat end is found in the tokenizer"
    (folder / "tokenizer.json").unlink()
    config = load(folder)
    assert config.eos_token_ids == (text_end,) and config.num_token_ids is None
    message = refusal(folder, lambda c: c["text_config"].pop("eos_token_id"))
    assert "eos_token_id: missing (no stop token" in message


def test_a_token_in_the_tokenizer_config_only_counts(folder: Path) -> None:
    """B36: repacks list the image pad in tokenizer_config.json alone."""
    expected = load(folder)

    def drop(tokenizer: dict[str, Any]) -> None:
        kept = [one for one in tokenizer["added_tokens"] if one["content"] != "<|image_pad|>"]
        assert len(kept) == len(tokenizer["added_tokens"]) - 1
        tokenizer["added_tokens"] = kept

    edit(folder / "tokenizer.json", drop)
    assert load(folder) == expected

    def move(config: dict[str, Any]) -> None:
        decoder = config["added_tokens_decoder"]
        decoder["300"] = decoder[str(TOKEN_IDS["<think>"])]

    edit(folder / "tokenizer_config.json", move)
    assert "token '<think>' has id" in refusal(folder)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", "{", "config.json: is not valid JSON"),
        ("config.json", "[1]", "config.json: is not a JSON object"),
        ("config.json", "[" * 100_000, "config.json: is not valid JSON"),
        ("config.json", "", "config.json: is empty"),
        ("tokenizer.json", "{}", "tokenizer.json: is not a tokenizer.json"),
        ("tokenizer.json", '{"model": {"vocab": {"a": 400}}}', "has ids up to 400, the embedding only 320"),
        ("tokenizer_config.json", '{"chat_template": 7}', "the chat template is not a string"),
        ("generation_config.json", '{"eos_token_id": "x"}', "generation_config.json: eos_token_id"),
        ("generation_config.json", '{"temperature": -1}', "temperature: -1 is not in"),
        ("preprocessor_config.json", "{}", "preprocessor_config.json: "),
        ("preprocessor_config.json", None, "has a vision tower but no preprocessor_config.json"),
    ],
)
def test_broken_side_files_are_named(name: str, content: str | None, message: str, folder: Path) -> None:
    if name == "tokenizer_config.json":
        (folder / "chat_template.jinja").unlink()
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_text(content)
    assert message in refusal(folder)


MOE_REFUSALS: dict[str, tuple[Change, str]] = {
    "dense text": (
        text(model_type="qwen3_5_text"),
        "text_config.model_type: 'qwen3_5_text' is not supported",
    ),
    "too many": (text(num_experts_per_tok=7), "num_experts_per_tok: 7 of 6 experts cannot be chosen"),
    "no experts": (text(num_experts=0), "text_config.num_experts: 0 is not in 1"),
    "weights as they are": (text(norm_topk_prob=False), "text_config.norm_topk_prob: False is not supported"),
    "dense layers": (text(mlp_only_layers=[0]), "text_config.mlp_only_layers: [0] is not supported"),
    "every second layer": (text(decoder_sparse_step=2), "text_config.decoder_sparse_step: 2"),
}


@pytest.mark.parametrize("case", MOE_REFUSALS)
def test_refusals_of_a_mixture(case: str, tmp_path: Path) -> None:
    write_hf(tmp_path, random_model(MOE_SHAPE))
    change, message = MOE_REFUSALS[case]
    assert message in refusal(tmp_path, change)


def test_a_mixture_of_experts(tmp_path: Path) -> None:
    write_hf(tmp_path, random_model(MOE_SHAPE))
    config = load(tmp_path).text
    assert config.moe == MoeConfig(experts=6, used=3, ffn=32, shared_ffn=64) and config.ffn == 0
    assert (
        load(tmp_path, text(norm_topk_prob=True, mlp_only_layers=[], intermediate_size=5632)).text == config
    )
    good = (tmp_path / "config.json").read_text()
    for name in (
        "num_experts",
        "num_experts_per_tok",
        "moe_intermediate_size",
        "shared_expert_intermediate_size",
    ):
        (tmp_path / "config.json").write_text(good)
        message = refusal(tmp_path, lambda c, name=name: c["text_config"].pop(name))  # type: ignore[misc]
        assert f"text_config.{name}: missing" in message
    (tmp_path / "config.json").write_text(json.dumps(json.loads(good)["text_config"]))
    assert load(tmp_path).text == config, "the file of a text-only export is the text part itself"
