"""A tiny model as GGUF files. The reorder and value changes are written out from spec qwen35 §17 and §18.

They are written a second time here, head by head, so that they can show a mistake in the loader.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from tests.weights.blocks import quantise
from tests.weights.tiny_model import TinyModel, TinyShape
from tests.weights.tiny_tokenizer import CHAT_TEMPLATE, TOKEN_IDS, gguf_lists

__all__ = [
    "gguf_metadata",
    "gguf_tensors",
    "hf_to_gguf",
    "mmproj_metadata",
    "mmproj_tensors",
    "write_gguf",
    "write_gguf_file",
]

F32 = npt.NDArray[np.float32]

_LAYER_NAMES = {
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "post_attention_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    "linear_attn.in_proj_qkv.weight": "attn_qkv.weight",
    "linear_attn.in_proj_z.weight": "attn_gate.weight",
    "linear_attn.in_proj_b.weight": "ssm_beta.weight",
    "linear_attn.in_proj_a.weight": "ssm_alpha.weight",
    "linear_attn.A_log": "ssm_a",
    "linear_attn.dt_bias": "ssm_dt.bias",
    "linear_attn.conv1d.weight": "ssm_conv1d.weight",
    "linear_attn.norm.weight": "ssm_norm.weight",
    "linear_attn.out_proj.weight": "ssm_out.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
    "mlp.gate.weight": "ffn_gate_inp.weight",
    "mlp.experts.gate_up_proj": "ffn_gate_up_exps.weight",
    "mlp.experts.down_proj": "ffn_down_exps.weight",
    "mlp.shared_expert.gate_proj.weight": "ffn_gate_shexp.weight",
    "mlp.shared_expert.up_proj.weight": "ffn_up_shexp.weight",
    "mlp.shared_expert.down_proj.weight": "ffn_down_shexp.weight",
    "mlp.shared_expert_gate.weight": "ffn_gate_inp_shexp.weight",
}
_MTP_NAMES = {
    "mtp.fc.weight": "nextn.eh_proj.weight",
    "mtp.pre_fc_norm_embedding.weight": "nextn.enorm.weight",
    "mtp.pre_fc_norm_hidden.weight": "nextn.hnorm.weight",
    "mtp.norm.weight": "nextn.shared_head_norm.weight",
}
_VISION_NAMES = {
    "norm1": "ln1",
    "norm2": "ln2",
    "attn.qkv": "attn_qkv",
    "attn.proj": "attn_out",
    "mlp.linear_fc1": "ffn_up",
    "mlp.linear_fc2": "ffn_down",
}


def _tile(values: F32, key_heads: int, ratio: int, axis: int, first: int = 0) -> F32:
    """gguf_head[n] = hf_head[(n % Hk)·r + n // Hk] (spec qwen35 §17), one head at a time."""
    moved = np.moveaxis(values, axis, 0).copy()
    size = (len(moved) - first) // (key_heads * ratio)
    source = moved.copy()
    for n in range(key_heads * ratio):
        old = (n % key_heads) * ratio + n // key_heads
        moved[first + n * size : first + (n + 1) * size] = source[
            first + old * size : first + (old + 1) * size
        ]
    return np.ascontiguousarray(np.moveaxis(moved, 0, axis))


def hf_to_gguf(name: str, values: F32, shape: TinyShape) -> tuple[str, F32]:
    """Name and values of a text tensor in a GGUF."""
    norms = ("layernorm.weight", "model.norm.weight", "q_norm.weight", "k_norm.weight")
    if name.endswith(norms) or name in list(_MTP_NAMES)[1:]:
        values = values + np.float32(1)
    if name == "lm_head.weight":
        return "output.weight", values
    if name in _MTP_NAMES:
        return f"blk.{shape.num_layers}.{_MTP_NAMES[name]}", values
    name = name.removeprefix("model.language_model.")
    if not name.startswith(("layers.", "mtp.layers.")):
        return {"embed_tokens.weight": "token_embd.weight", "norm.weight": "output_norm.weight"}[name], values
    base = shape.num_layers if name.startswith("mtp.") else 0
    _, index, rest = name.removeprefix("mtp.").split(".", 2)
    hk, r, keys = shape.key_heads, shape.ratio, 2 * shape.key_heads * shape.key_dim
    if rest.endswith("conv1d.weight"):
        values = _tile(values[:, 0], hk, r, 0, keys)
    elif rest.endswith("in_proj_qkv.weight"):
        values = _tile(values, hk, r, 0, keys)
    elif rest.endswith("out_proj.weight"):
        values = _tile(values, hk, r, 1)
    elif rest.endswith("A_log"):
        values = _tile((-np.exp(values.astype(np.float64))).astype(np.float32), hk, r, 0)
    elif rest == "mlp.shared_expert_gate.weight":
        values = values[0]
    elif rest.endswith(("in_proj_z.weight", "in_proj_b.weight", "in_proj_a.weight", "dt_bias")):
        values = _tile(values, hk, r, 0)
    return f"blk.{base + int(index)}.{_LAYER_NAMES[rest]}", values


def gguf_tensors(model: TinyModel, *, fused: bool = False) -> dict[str, F32]:
    """Text tensors by GGUF name. ``fused``: gate and up of the experts stay one tensor, as some converters do it."""
    found: dict[str, F32] = {}
    for hf_name, hf_values in model.tensors.items():
        if hf_name.startswith("model.visual."):
            continue
        name, values = hf_to_gguf(hf_name, hf_values, model.shape)
        if "ffn_gate_up_exps" in name and not fused:
            half = model.shape.expert_ffn
            found[name.replace("gate_up", "gate")] = np.ascontiguousarray(values[:, :half])
            found[name.replace("gate_up", "up")] = np.ascontiguousarray(values[:, half:])
        else:
            found[name] = values
    return found


def mmproj_tensors(model: TinyModel) -> dict[str, F32]:
    """Vision tensors by GGUF name (spec qwen35 §18)."""
    found = {}
    for name, values in model.tensors.items():
        if not name.startswith("model.visual."):
            continue
        name = name.removeprefix("model.visual.")
        stem, kind = name.rsplit(".", 1)
        if name == "patch_embed.proj.weight":
            found["v.patch_embd.weight"] = np.ascontiguousarray(values[:, :, 0])
            found["v.patch_embd.weight.1"] = np.ascontiguousarray(values[:, :, 1])
        elif stem.startswith("blocks."):
            _, index, part = stem.split(".", 2)
            found[f"v.blk.{index}.{_VISION_NAMES[part]}.{kind}"] = values
        else:
            new = {
                "patch_embed.proj": "v.patch_embd",
                "pos_embed": "v.position_embd",
                "merger.norm": "v.post_ln",
                "merger.linear_fc1": "mm.0",
                "merger.linear_fc2": "mm.2",
            }[stem]
            found[f"{new}.{kind}"] = values
    return found


def gguf_metadata(model: TinyModel) -> dict[str, Any]:
    """Metadata of the text file (spec qwen35 §17). Values: int -> u32, float -> f32, lists -> arrays."""
    shape, text = model.shape, model.config["text_config"]
    tokens, kinds, merges = gguf_lists(shape.vocab)
    mtp = text["mtp_num_hidden_layers"]
    keys: dict[str, Any] = {
        "block_count": shape.num_layers + mtp,
        "context_length": shape.max_positions,
        "embedding_length": shape.hidden,
        "attention.head_count": shape.heads,
        "attention.head_count_kv": shape.kv_heads,
        "attention.key_length": shape.head_dim,
        "attention.value_length": shape.head_dim,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.freq_base": 1e7,
        "rope.dimension_count": shape.head_dim // 4,
        "rope.dimension_sections": [*shape.mrope_section, 0],
        "ssm.conv_kernel": 4,
        "ssm.state_size": shape.key_dim,
        "ssm.group_count": shape.key_heads,
        "ssm.time_step_rank": shape.value_heads,
        "ssm.inner_size": shape.value_heads * shape.value_dim,
        "full_attention_interval": shape.interval,
    }
    if shape.experts:
        keys |= {
            "expert_count": shape.experts,
            "expert_used_count": shape.used,
            "expert_feed_forward_length": shape.expert_ffn,
            "expert_shared_feed_forward_length": shape.shared_ffn,
        }
    else:
        keys["feed_forward_length"] = shape.ffn
    if mtp:
        keys["nextn_predict_layers"] = mtp
    kind = "qwen35moe" if shape.experts else "qwen35"
    return {
        "general.architecture": kind,
        "general.type": "model",
        "general.name": "Tiny",
        **{f"{kind}.{key}": value for key, value in keys.items()},
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen35",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": TOKEN_IDS["<|endoftext|>"],
        "tokenizer.ggml.eos_token_id": TOKEN_IDS["<|im_end|>"],
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }


def mmproj_metadata(model: TinyModel) -> dict[str, Any]:
    """Metadata of the vision file (spec qwen35 §18)."""
    shape = model.shape
    unit = shape.patch_size * 2
    return {
        "general.architecture": "clip",
        "general.type": "mmproj",
        "general.name": "Tiny",
        "clip.has_vision_encoder": True,
        "clip.projector_type": "qwen3vl_merger",
        "clip.use_gelu": True,
        "clip.vision.image_size": shape.grid_side * shape.patch_size,
        "clip.vision.patch_size": shape.patch_size,
        "clip.vision.embedding_length": shape.vision_hidden,
        "clip.vision.feed_forward_length": shape.vision_ffn,
        "clip.vision.block_count": shape.vision_depth,
        "clip.vision.projection_dim": shape.hidden,
        "clip.vision.spatial_merge_size": 2,
        "clip.vision.image_mean": [0.5, 0.5, 0.5],
        "clip.vision.image_std": [0.5, 0.5, 0.5],
        "clip.vision.image_min_pixels": 4 * unit**2,
        "clip.vision.image_max_pixels": 64 * unit**2,
        "clip.vision.is_deepstack_layers": [False] * shape.vision_depth,
        "clip.vision.attention.head_count": shape.vision_heads,
        "clip.vision.attention.layer_norm_epsilon": 1e-6,
    }


def write_gguf(
    folder: Path,
    model: TinyModel,
    *,
    quant: str = "F32",
    seed: int = 0,
    metadata: Mapping[str, Any] | None = None,
    vision_quant: str = "F32",
    fused: bool = False,
) -> Path:
    """``model.gguf`` and, for a model with vision, ``mmproj.gguf`` in ``folder``. The path of the text file.

    Args:
        quant: GGML type of the text matrices whose rows allow it; norms, ``ssm_a``, ``ssm_dt`` and ``ssm_conv1d``
            are always F32. Types that ``gguf`` cannot write get random valid blocks instead of the values.
        metadata: replaces :func:`gguf_metadata`.
        fused: as in :func:`gguf_tensors`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "model.gguf"
    write_gguf_file(path, metadata or gguf_metadata(model), gguf_tensors(model, fused=fused), quant, seed)
    if model.shape.vision:
        write_gguf_file(
            folder / "mmproj.gguf", mmproj_metadata(model), mmproj_tensors(model), vision_quant, seed
        )
    return path


def write_gguf_file(
    path: Path, metadata: Mapping[str, Any], tensors: Mapping[str, F32], quant: str = "F32", seed: int = 0
) -> None:
    """One GGUF by the ``gguf`` package's writer."""
    writer = gguf.GGUFWriter(path, str(metadata["general.architecture"]))
    for key, value in metadata.items():
        if key == "general.architecture":
            continue
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            (writer.add_int32 if value < 0 else writer.add_uint32)(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        elif value:
            writer.add_array(key, value)
    rng = np.random.default_rng(seed)
    kind = gguf.GGMLQuantizationType[quant]
    block = gguf.GGML_QUANT_SIZES[kind][0]
    for name, values in tensors.items():
        if values.ndim == 1 or "ssm_conv1d" in name or values.shape[-1] % block:
            writer.add_tensor(name, values)
        else:
            writer.add_tensor(name, quantise(values, quant, rng), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
