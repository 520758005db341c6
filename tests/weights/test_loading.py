"""Canonical weights are the same whatever the file form, and every wrong tensor is named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import attrs
import numpy as np
import pytest

from luce.engines.qwen35.config import Qwen35Config
from luce.engines.qwen35.loading import LoadProgress, check_tensors, load_config, load_weights
from luce.engines.qwen35.weights import DeltaNetWeights, FullAttentionWeights, MoeWeights, Qwen35Weights
from luce.errors import ModelFileError
from luce.weights.gguf_file import open_gguf
from luce.weights.model_files import resolve_model
from tests.weights.arrays import distinct_bytes, named_arrays, same_bits
from tests.weights.gguf_writers import gguf_metadata, gguf_tensors, mmproj_metadata, mmproj_tensors
from tests.weights.writers import (
    K_QUANT_SHAPE,
    MOE_SHAPE,
    TinyModel,
    TinyShape,
    random_model,
    write_gguf,
    write_gguf_file,
    write_hf,
)

SHAPES = {
    "r = 1, tied": TinyShape(ratio=1, tied=True),
    "r = 2": TinyShape(),
    "r = 3, three key heads": TinyShape(ratio=3, key_heads=3),
    "text only": TinyShape(ratio=3, vision=False, mtp=False, tied=True),
    "Dk differs from Dv": TinyShape(key_dim=8, value_dim=24),
    "every layer full": TinyShape(interval=1, num_layers=2),
    "mixture of experts": MOE_SHAPE,
    "one expert, r = 3, tied": TinyShape(experts=1, used=1, ratio=3, tied=True),
}


def load(path: Path) -> tuple[Qwen35Config, Qwen35Weights]:
    files = resolve_model(path)
    config = load_config(files)
    return config, load_weights(files, config)


@pytest.mark.parametrize("case", SHAPES)
def test_gguf_and_safetensors_load_to_equal_bits(case: str, tmp_path: Path) -> None:
    model = random_model(SHAPES[case], seed=3)
    hf_config, hf = load(write_hf(tmp_path / "hf", model))
    gguf_config, gguf = load(write_gguf(tmp_path / "gguf", model))
    assert hf_config == gguf_config
    assert same_bits(hf, gguf) == []
    for name, array in named_arrays(hf):
        assert array.dtype == np.float32 and array.flags.c_contiguous, name
        assert array.any(), name


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("dtype", ["BF16", "F32"])
def test_shards_and_wider_dtypes_change_nothing(shards: int, dtype: str, tmp_path: Path) -> None:
    model = random_model(seed=4)
    _, one = load(write_hf(tmp_path / "one", model))
    _, other = load(write_hf(tmp_path / "other", model, dtype=dtype, shards=shards))
    assert same_bits(one, other) == []


def test_values_against_the_specification(tmp_path: Path) -> None:
    model = random_model(TinyShape(ratio=3), seed=5)
    _, weights = load(write_gguf(tmp_path, model))
    t, base = model.tensors, "model.language_model.layers."
    linear, full = weights.layers[0].mixer, weights.layers[3].mixer
    assert isinstance(linear, DeltaNetWeights) and isinstance(full, FullAttentionWeights)
    a_log = t[f"{base}0.linear_attn.A_log"].astype(np.float64)
    assert np.allclose(linear.neg_exp_a, -np.exp(a_log), rtol=1e-7) and (linear.neg_exp_a < 0).all()
    assert (linear.gdn_norm == t[f"{base}0.linear_attn.norm.weight"]).all()
    assert (linear.qkv == t[f"{base}0.linear_attn.in_proj_qkv.weight"]).all()
    assert (linear.out == t[f"{base}0.linear_attn.out_proj.weight"]).all()
    assert (linear.conv == t[f"{base}0.linear_attn.conv1d.weight"][:, 0]).all()
    assert len({tuple(row) for row in linear.conv}) == len(linear.conv), "distinct taps show a wrong order"
    assert (weights.layers[0].input_norm == 1 + t[f"{base}0.input_layernorm.weight"]).all()
    assert (full.q_norm == 1 + t[f"{base}3.self_attn.q_norm.weight"]).all()
    assert weights.mtp is not None and weights.vision is not None
    assert (weights.mtp.norm == 1 + t["mtp.norm.weight"]).all()
    assert (weights.mtp.fc == t["mtp.fc.weight"]).all()
    patch = t["model.visual.patch_embed.proj.weight"]
    assert (weights.vision.patch == (patch[:, :, 0] + patch[:, :, 1]).reshape(len(patch), -1)).all()


@pytest.mark.parametrize("experts", [0, 3], ids=["dense", "mixture"])
@pytest.mark.parametrize(
    "quant", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS"]
)
def test_a_quantised_file_loads_as_its_dequantised_values(quant: str, experts: int, tmp_path: Path) -> None:
    """The same model written again as F32 from the dequantised tensors gives equal bits."""
    shape = attrs.evolve(K_QUANT_SHAPE, experts=experts, used=2, expert_ffn=256, shared_ffn=512)
    model = random_model(shape, seed=6)
    path = write_gguf(tmp_path / "quantised", model, quant=quant)
    opened = open_gguf(path)
    formats = [info.format for info in opened.tensors.values()]
    assert formats.count(quant) > len(formats) / 2
    deep = [info for info in opened.tensors.values() if len(info.shape) == 3]
    assert len(deep) == (15 if experts else 0) and {info.format for info in deep} <= {quant}
    plain = {name: opened.load(name) for name in opened.tensors}
    write_gguf_file(tmp_path / "plain.gguf", gguf_metadata(model), plain)
    write_gguf_file(tmp_path / "mmproj.gguf", mmproj_metadata(model), mmproj_tensors(model))
    _, quantised = load(path)
    _, expected = load(tmp_path / "plain.gguf")
    assert same_bits(quantised, expected) == []


def test_fused_and_separate_experts_of_a_gguf_are_the_same(tmp_path: Path) -> None:
    model = random_model(MOE_SHAPE, seed=11)
    apart, fused = (write_gguf(tmp_path / str(one), model, fused=one) for one in (False, True))
    assert "blk.0.ffn_up_exps.weight" in open_gguf(apart).tensors
    assert "blk.0.ffn_gate_up_exps.weight" in open_gguf(fused).tensors
    assert same_bits(load(apart)[1], load(fused)[1]) == []


def one_by_one(model: TinyModel) -> TinyModel:
    """The model with a tensor for each matrix of each expert, as some repacks have it."""
    found: dict[str, np.ndarray] = {}
    for name, values in model.tensors.items():
        stem, _, part = name.partition("mlp.experts.")
        if not part:
            found[name] = values
            continue
        half = model.shape.expert_ffn
        kinds = (
            {"gate": values[:, :half], "up": values[:, half:]} if part == "gate_up_proj" else {"down": values}
        )
        for kind, matrices in kinds.items():
            for index, matrix in enumerate(matrices):
                found[f"{stem}mlp.experts.{index}.{kind}_proj.weight"] = np.ascontiguousarray(matrix)
    return attrs.evolve(model, tensors=found)


def test_experts_one_by_one_and_together_are_the_same(tmp_path: Path) -> None:
    model = random_model(MOE_SHAPE, seed=12)
    apart = one_by_one(model)
    assert len(apart.tensors) == len(model.tensors) + 5 * (3 * 6 - 2)
    _, expected = load(write_hf(tmp_path / "together", model))
    _, loaded = load(write_hf(tmp_path / "apart", apart, shards=2))
    assert same_bits(expected, loaded) == []
    name = "model.language_model.layers.1.mlp.experts.4.up_proj.weight"
    del apart.tensors[name]
    with pytest.raises(ModelFileError, match=rf"tensor '{name}': missing \(expected shape \[32, 64\]"):
        load(write_hf(tmp_path / "less", apart))


def test_values_of_experts_against_the_specification(tmp_path: Path) -> None:
    model = random_model(MOE_SHAPE, seed=13)
    _, weights = load(write_gguf(tmp_path, model))
    t, name = model.tensors, "model.language_model.layers.2.mlp."
    moe = weights.layers[2].ffn
    assert isinstance(moe, MoeWeights)
    assert (moe.router == t[f"{name}gate.weight"]).all()
    assert (moe.gate_up == t[f"{name}experts.gate_up_proj"]).all()
    assert (moe.down == t[f"{name}experts.down_proj"]).all()
    assert (moe.shared.up == t[f"{name}shared_expert.up_proj.weight"]).all()
    assert (moe.shared_gate == t[f"{name}shared_expert_gate.weight"]).all()
    assert weights.mtp is not None and isinstance(weights.mtp.layers[0].ffn, MoeWeights)


def test_text_only_exports_use_the_short_prefix(tmp_path: Path) -> None:
    model = random_model(TinyShape(vision=False, mtp=False), seed=7)
    _, expected = load(write_hf(tmp_path / "full", model))
    short = {
        name.replace("model.language_model.", "model."): values for name, values in model.tensors.items()
    }
    text = dict(model.config["text_config"], tie_word_embeddings=False)
    _, loaded = load(write_hf(tmp_path / "short", TinyModel(model.shape, text, short)))
    assert same_bits(expected, loaded) == []


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize(
    ("tie", "present", "outcome"),
    [(True, False, "shared"), (True, True, "own"), (False, True, "own"), (False, False, "error")],
)
def test_head_table(tie: bool, present: bool, outcome: str, shards: int, tmp_path: Path) -> None:
    """B122: a head in the file wins, a missing one is tied only if the configuration says so."""
    model = random_model(TinyShape(tied=not present, vision=False, mtp=False), seed=8)
    model.config["tie_word_embeddings"] = tie
    model.config["text_config"]["tie_word_embeddings"] = not tie  # the top level decides
    write_hf(tmp_path, model, shards=shards)
    if outcome == "error":
        with pytest.raises(
            ModelFileError, match=r"tensor 'lm_head.weight': missing \(expected shape \[320, 64\]"
        ):
            load(tmp_path)
        return
    config, weights = load(tmp_path)
    assert config.text.tied == (outcome == "shared")
    assert (weights.head is weights.embed) == (outcome == "shared")
    if present:
        assert (weights.head == model.tensors["lm_head.weight"]).all()


def test_mtp_declared_but_dropped_is_none(tmp_path: Path) -> None:
    model = random_model(seed=9)
    model.tensors = {name: t for name, t in model.tensors.items() if not name.startswith("mtp.")}
    for path in (write_hf(tmp_path / "hf", model), write_gguf(tmp_path / "gguf", model)):
        config, weights = load(path)
        assert config.text.num_mtp_layers == 0 and weights.mtp is None
        assert len(weights.layers) == 4


def test_progress_reaches_the_total(tmp_path: Path) -> None:
    files = resolve_model(write_gguf(tmp_path, random_model()))
    config = load_config(files)
    seen: list[LoadProgress] = []
    load_weights(files, config, seen.append)
    assert files.mmproj is not None
    assert len(seen) == len(files.text.tensors) + len(files.mmproj.tensors)
    assert [state.done for state in seen] == sorted({state.done for state in seen})
    assert {state.total for state in seen} == {seen[-1].done} == {check_tensors(files, config)}


def test_no_array_keeps_the_file_mapped(tmp_path: Path) -> None:
    """Weights are owned copies: a view of the map would count twice and break when the file changes."""
    _, weights = load(write_gguf(tmp_path, random_model()))
    for name, array in named_arrays(weights):
        root = array
        while root.base is not None:
            root = root.base
        assert isinstance(root, np.ndarray) and root.flags.owndata, name
    assert distinct_bytes(weights) > 0


def _without(name: str) -> Callable[[dict[str, np.ndarray]], object]:
    return lambda tensors: tensors.pop(name)


def _reshaped(name: str) -> Callable[[dict[str, np.ndarray]], object]:
    return lambda tensors: tensors.update({name: np.concatenate([tensors[name], tensors[name][:1]])})


def _added(name: str) -> Callable[[dict[str, np.ndarray]], object]:
    return lambda tensors: tensors.update({name: np.ones((2, 2), np.float32)})


SMALL_SHAPES = pytest.mark.parametrize(
    "shape",
    [
        TinyShape(num_layers=2, interval=2, vision_depth=1),
        TinyShape(num_layers=1, interval=1, vision=False, experts=3),
    ],
    ids=["dense", "mixture"],
)


@SMALL_SHAPES
def test_each_missing_or_misshapen_tensor_is_named(shape: TinyShape, tmp_path: Path) -> None:
    model = random_model(shape)
    for name in model.tensors:
        for change, fault in ((_without(name), "missing"), (_reshaped(name), "has shape")):
            tensors = dict(model.tensors)
            change(tensors)
            if name == "model.language_model.embed_tokens.weight" and fault == "missing":
                assert "model.embed_tokens.weight" not in tensors
            write_hf(tmp_path, attrs.evolve(model, tensors=tensors))
            with pytest.raises(ModelFileError) as caught:
                load(tmp_path)
            assert f"tensor '{name}': {fault}" in str(caught.value)
            assert str(tmp_path / "model.safetensors") in str(caught.value)


@SMALL_SHAPES
def test_each_missing_or_misshapen_gguf_tensor_is_named(shape: TinyShape, tmp_path: Path) -> None:
    model = random_model(shape)
    text, vision = gguf_tensors(model), mmproj_tensors(model)
    for good, metadata, file in (
        (text, gguf_metadata(model), "model.gguf"),
        (vision, mmproj_metadata(model), "mmproj.gguf"),
    ):
        for name in good:
            for change, fault in ((_without(name), "missing"), (_reshaped(name), "has ")):
                if (name, fault) == ("output.weight", "missing"):
                    continue  # a tied model
                tensors = dict(good)
                change(tensors)
                write_gguf(tmp_path, model)
                write_gguf_file(tmp_path / file, metadata, tensors)
                with pytest.raises(ModelFileError) as caught:
                    load(tmp_path / "model.gguf")
                assert str(tmp_path / file) in str(caught.value)
                special = {("token_embd.weight", "has "): "token_embd 321 rows"}
                expected = special.get((name, fault), f"tensor '{name}': {fault}")
                assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("model.language_model.layers.0.mlp.experts.down_proj", "not part of a Qwen3.5 model"),
        ("model.language_model.layers.0.mlp.shared_expert_gate.weight", "not part of a Qwen3.5 model"),
        ("mtp.extra.weight", "set mtp_num_hidden_layers"),
        ("model.visual.deepstack_merger_list.0.norm.weight", "config.json has no vision_config"),
        ("model.language_model.layers.0.mlp.up_proj.weight_scale_inv", "not part of"),
    ],
)
def test_unknown_safetensors_are_refused(name: str, why: str, tmp_path: Path) -> None:
    model = random_model(TinyShape(vision=False, mtp=False))
    _added(name)(model.tensors)
    with pytest.raises(ModelFileError) as caught:
        load(write_hf(tmp_path, model))
    assert f"tensor '{name}': is not part of a Qwen3.5 model" in str(caught.value)
    assert why in str(caught.value)


@pytest.mark.parametrize(
    ("file", "name", "why"),
    [
        ("model.gguf", "rope_freqs.weight", "context extension is not served"),
        ("model.gguf", "blk.0.ffn_gate_exps.weight", "not part of"),
        ("mmproj.gguf", "v.deepstack.0.fc1.weight", "extra image features per layer"),
    ],
)
def test_unknown_gguf_tensors_are_refused(file: str, name: str, why: str, tmp_path: Path) -> None:
    model = random_model()
    write_gguf(tmp_path, model)
    if file == "model.gguf":
        write_gguf_file(
            tmp_path / file, gguf_metadata(model), gguf_tensors(model) | {name: np.ones((2, 2), np.float32)}
        )
    else:
        tensors = mmproj_tensors(model) | {name: np.ones((2, 2), np.float32)}
        write_gguf_file(tmp_path / file, mmproj_metadata(model), tensors)
    with pytest.raises(ModelFileError) as caught:
        load(tmp_path / "model.gguf")
    assert f"{file}: tensor '{name}'" in str(caught.value) and why in str(caught.value)


def test_an_unsupported_type_is_refused_before_data_is_read(tmp_path: Path) -> None:
    model = random_model(K_QUANT_SHAPE)
    path = write_gguf(tmp_path, model, quant="Q4_K")
    data = bytearray(path.read_bytes())
    name = b"blk.0.ffn_down.weight"
    at = data.index(name) + len(name) + 4 + 16
    assert data[at] == 12  # Q4_K
    data[at] = 20  # IQ4_NL: smaller blocks of 32
    path.write_bytes(data)
    files = resolve_model(path)
    with pytest.raises(
        ModelFileError, match=r"tensor 'blk.0.ffn_down.weight': format IQ4_NL is not supported"
    ):
        check_tensors(files, load_config(files))
