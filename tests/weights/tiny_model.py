"""Tiny random Qwen3.5 models in memory: config.json and tensors by Hugging Face name (spec qwen35 §1, §16)."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import numpy.typing as npt

from tests.weights.tiny_tokenizer import NUM_TOKENS, TOKEN_IDS

__all__ = [
    "K_QUANT_SHAPE",
    "MOE_SHAPE",
    "TinyModel",
    "TinyShape",
    "hf_config",
    "hf_shapes",
    "random_model",
    "to_bf16",
]

F32 = npt.NDArray[np.float32]


@attrs.frozen
class TinyShape:
    """Shape of a tiny model. ``hidden``, ``ffn`` and head products must be multiples of 256 for k-quants."""

    vocab: int = 320
    """Rows of the embedding; the tokenizer has :data:`NUM_TOKENS` ids, the rest is padding."""
    hidden: int = 64
    num_layers: int = 4
    ffn: int = 96
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    mrope_section: tuple[int, int, int] = (2, 1, 1)
    """Sums to head_dim / 8."""
    key_heads: int = 2
    ratio: int = 2
    """Value heads per key head."""
    key_dim: int = 16
    value_dim: int = 16
    interval: int = 4
    max_positions: int = 4096
    tied: bool = False
    vision: bool = True
    mtp: bool = True
    vision_depth: int = 2
    vision_hidden: int = 32
    vision_heads: int = 2
    vision_ffn: int = 48
    patch_size: int = 8
    grid_side: int = 6
    experts: int = 0
    """0: a dense model, with ``ffn``."""
    used: int = 3
    expert_ffn: int = 32
    shared_ffn: int = 64

    @property
    def value_heads(self) -> int:
        return self.key_heads * self.ratio


K_QUANT_SHAPE = TinyShape(
    hidden=256,
    ffn=256,
    heads=2,
    kv_heads=1,
    head_dim=128,
    mrope_section=(6, 5, 5),
    key_heads=2,
    ratio=2,
    key_dim=32,
    value_dim=64,
)
"""Every matrix has rows of whole 256-value blocks."""
MOE_SHAPE = TinyShape(experts=6)


@attrs.define(eq=False)
class TinyModel:
    """A model in memory. Tests may change ``config`` and ``tensors`` before writing."""

    shape: TinyShape
    config: dict[str, Any]
    """config.json."""
    tensors: dict[str, F32]
    """By Hugging Face name; rounded to bfloat16 except ``A_log`` and ``linear_attn.norm``."""


def hf_config(shape: TinyShape) -> dict[str, Any]:
    """config.json as released models have it (spec qwen35 §1.1)."""
    kind = "qwen3_5_moe" if shape.experts else "qwen3_5"
    text = {
        "model_type": f"{kind}_text",
        "dtype": "bfloat16",
        "vocab_size": shape.vocab,
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.num_layers,
        **_ffn_config(shape),
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "linear_num_key_heads": shape.key_heads,
        "linear_num_value_heads": shape.value_heads,
        "linear_key_head_dim": shape.key_dim,
        "linear_value_head_dim": shape.value_dim,
        "linear_conv_kernel_dim": 4,
        "full_attention_interval": shape.interval,
        "layer_types": [
            "full_attention" if (i + 1) % shape.interval == 0 else "linear_attention"
            for i in range(shape.num_layers)
        ],
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "attention_bias": False,
        "attn_output_gate": True,
        "mamba_ssm_dtype": "float32",
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10_000_000,
            "partial_rotary_factor": 0.25,
            "mrope_section": list(shape.mrope_section),
            "mrope_interleaved": True,
        },
        "mtp_num_hidden_layers": 1 if shape.mtp else 0,
        "mtp_use_dedicated_embeddings": False,
        "bos_token_id": TOKEN_IDS["<|endoftext|>"],
        "eos_token_id": TOKEN_IDS["<|endoftext|>"],
        "max_position_embeddings": shape.max_positions,
        "tie_word_embeddings": shape.tied,
    }
    config: dict[str, Any] = {
        "architectures": [f"Qwen3_5{'Moe' if shape.experts else ''}ForConditionalGeneration"],
        "model_type": kind,
        "image_token_id": TOKEN_IDS["<|image_pad|>"],
        "video_token_id": TOKEN_IDS["<|video_pad|>"],
        "vision_start_token_id": TOKEN_IDS["<|vision_start|>"],
        "vision_end_token_id": TOKEN_IDS["<|vision_end|>"],
        "tie_word_embeddings": shape.tied,
        "text_config": text,
    }
    if shape.vision:
        config["vision_config"] = {
            "model_type": kind,
            "depth": shape.vision_depth,
            "hidden_size": shape.vision_hidden,
            "num_heads": shape.vision_heads,
            "intermediate_size": shape.vision_ffn,
            "in_channels": 3,
            "patch_size": shape.patch_size,
            "temporal_patch_size": 2,
            "spatial_merge_size": 2,
            "num_position_embeddings": shape.grid_side**2,
            "out_hidden_size": shape.hidden,
            "hidden_act": "gelu_pytorch_tanh",
            "deepstack_visual_indexes": [],
        }
    return config


def _ffn_config(shape: TinyShape) -> dict[str, Any]:
    if not shape.experts:
        return {"intermediate_size": shape.ffn}
    return {
        "num_experts": shape.experts,
        "num_experts_per_tok": shape.used,
        "moe_intermediate_size": shape.expert_ffn,
        "shared_expert_intermediate_size": shape.shared_ffn,
        "router_aux_loss_coef": 0.001,
    }


def hf_shapes(shape: TinyShape) -> dict[str, tuple[int, ...]]:
    """Tensor names and shapes of spec qwen35 §16."""
    h, hv = shape.hidden, shape.value_heads
    value = hv * shape.value_dim
    conv = 2 * shape.key_heads * shape.key_dim + value
    found: dict[str, tuple[int, ...]] = {"model.language_model.embed_tokens.weight": (shape.vocab, h)}

    def layer(name: str, full: bool) -> None:
        found[f"{name}input_layernorm.weight"] = (h,)
        if full:
            query, key = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
            for part, rows in (("q_proj", 2 * query), ("k_proj", key), ("v_proj", key)):
                found[f"{name}self_attn.{part}.weight"] = (rows, h)
            found[f"{name}self_attn.o_proj.weight"] = (h, query)
            for part in ("q_norm", "k_norm"):
                found[f"{name}self_attn.{part}.weight"] = (shape.head_dim,)
        else:
            for part, rows in (("qkv", conv), ("z", value), ("b", hv), ("a", hv)):
                found[f"{name}linear_attn.in_proj_{part}.weight"] = (rows, h)
            found[f"{name}linear_attn.conv1d.weight"] = (conv, 1, 4)
            found[f"{name}linear_attn.A_log"] = (hv,)
            found[f"{name}linear_attn.dt_bias"] = (hv,)
            found[f"{name}linear_attn.norm.weight"] = (shape.value_dim,)
            found[f"{name}linear_attn.out_proj.weight"] = (h, value)
        found[f"{name}post_attention_layernorm.weight"] = (h,)
        if not shape.experts:
            swiglu(f"{name}mlp.", shape.ffn)
            return
        e, i = shape.experts, shape.expert_ffn
        found[f"{name}mlp.gate.weight"] = (e, h)
        found[f"{name}mlp.experts.gate_up_proj"] = (e, 2 * i, h)
        found[f"{name}mlp.experts.down_proj"] = (e, h, i)
        swiglu(f"{name}mlp.shared_expert.", shape.shared_ffn)
        found[f"{name}mlp.shared_expert_gate.weight"] = (1, h)

    def swiglu(name: str, ffn: int) -> None:
        for part, size in (("gate", (ffn, h)), ("up", (ffn, h)), ("down", (h, ffn))):
            found[f"{name}{part}_proj.weight"] = size

    for index in range(shape.num_layers):
        layer(f"model.language_model.layers.{index}.", (index + 1) % shape.interval == 0)
    found["model.language_model.norm.weight"] = (h,)
    if not shape.tied:
        found["lm_head.weight"] = (shape.vocab, h)
    if shape.mtp:
        found["mtp.fc.weight"] = (h, 2 * h)
        for part in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"):
            found[f"mtp.{part}.weight"] = (h,)
        layer("mtp.layers.0.", True)
    if shape.vision:
        found |= _vision_shapes(shape)
    return found


def _vision_shapes(shape: TinyShape) -> dict[str, tuple[int, ...]]:
    d, f, p, merged = shape.vision_hidden, shape.vision_ffn, shape.patch_size, 4 * shape.vision_hidden
    found: dict[str, tuple[int, ...]] = {
        "patch_embed.proj.weight": (d, 3, 2, p, p),
        "patch_embed.proj.bias": (d,),
        "pos_embed.weight": (shape.grid_side**2, d),
    }
    for index in range(shape.vision_depth):
        for part, rows, columns in (
            ("attn.qkv", 3 * d, d),
            ("attn.proj", d, d),
            ("mlp.linear_fc1", f, d),
            ("mlp.linear_fc2", d, f),
        ):
            found[f"blocks.{index}.{part}.weight"] = (rows, columns)
            found[f"blocks.{index}.{part}.bias"] = (rows,)
        for part in ("norm1", "norm2"):
            found[f"blocks.{index}.{part}.weight"] = found[f"blocks.{index}.{part}.bias"] = (d,)
    found["merger.norm.weight"] = found["merger.norm.bias"] = (d,)
    for part, rows in (("linear_fc1", merged), ("linear_fc2", shape.hidden)):
        found[f"merger.{part}.weight"] = (rows, merged)
        found[f"merger.{part}.bias"] = (rows,)
    return {f"model.visual.{name}": size for name, size in found.items()}


def to_bf16(values: F32) -> F32:
    """Cut float32 to the values that bfloat16 holds."""
    return (values.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)


def random_model(shape: TinyShape | None = None, seed: int = 0) -> TinyModel:
    """Random tensors of sensible size: activations stay bounded and no weight is zero."""
    shape = shape or TinyShape()
    rng = np.random.default_rng(seed)
    tensors = {}
    for name, size in hf_shapes(shape).items():
        values = rng.standard_normal(size, dtype=np.float32)
        if name.endswith("A_log"):
            values = np.log(rng.random(size, dtype=np.float32) * 3 + np.float32(0.02))
        elif name.endswith("dt_bias"):
            values -= 1
        elif len(size) == 1:
            plain = "linear_attn.norm" in name or ("visual" in name and name.endswith("weight"))
            values = values * np.float32(0.2) + np.float32(plain)
        elif "embed" in name and "patch" not in name:
            values *= np.float32(0.6)
        elif "conv1d" in name or name == "lm_head.weight":
            values *= np.float32(0.5)
        else:
            values /= np.float32(np.sqrt(size[-1] if "experts." in name else np.prod(size[1:])))
        keep = name.endswith(("A_log", "linear_attn.norm.weight"))
        tensors[name] = values if keep else to_bf16(values)
    return TinyModel(shape, hf_config(shape), tensors)


assert TinyShape().vocab >= NUM_TOKENS
