"""Safetensors names and shapes to canonical weights (spec qwen35 §16)."""

from __future__ import annotations

from collections.abc import Container

import numpy as np
import numpy.typing as npt

from luce.engines.qwen35.config import MoeConfig, Qwen35Config, TextConfig, VisionConfig
from luce.engines.qwen35.conversions import flatten_rows, neg_exp, plus_one, stack_experts, sum_frames
from luce.engines.qwen35.take import Take
from luce.engines.qwen35.weights import (
    DeltaNetWeights,
    FfnWeights,
    FullAttentionWeights,
    LayerWeights,
    MoeWeights,
    MtpWeights,
    Qwen35Weights,
    VisionBlockWeights,
    VisionWeights,
)

__all__ = ["HINTS", "hf_weights", "text_prefix"]

F32 = npt.NDArray[np.float32]

HINTS = (
    ("mtp.", "set mtp_num_hidden_layers in text_config to serve it"),
    ("model.visual.", "config.json has no vision_config for it"),
)
_PREFIXES = ("model.language_model.", "model.")


def text_prefix(names: Container[str]) -> str:
    """Prefix of the text model: full exports say ``model.language_model.``, text-only ones ``model.``."""
    long, short = _PREFIXES
    return short if f"{short}embed_tokens.weight" in names else long


def hf_weights(take: Take, config: Qwen35Config, prefix: str) -> Qwen35Weights:
    """The whole model. See :mod:`luce.engines.qwen35.take` for what ``take`` does and raises."""
    text = config.text
    embed = take(f"{prefix}embed_tokens.weight", (text.vocab_size, text.hidden))
    return Qwen35Weights(
        embed=embed,
        layers=tuple(
            _layer(take, text, f"{prefix}layers.{index}.", full)
            for index, full in enumerate(text.full_attention)
        ),
        final_norm=take(f"{prefix}norm.weight", (text.hidden,), plus_one),
        head=embed if text.tied else take("lm_head.weight", (text.vocab_size, text.hidden)),
        vision=_vision(take, config.vision) if config.vision is not None else None,
        mtp=_mtp(take, text) if text.num_mtp_layers else None,
    )


def _layer(take: Take, text: TextConfig, name: str, full: bool) -> LayerWeights:
    return LayerWeights(
        input_norm=take(f"{name}input_layernorm.weight", (text.hidden,), plus_one),
        mixer=_full_attention(take, text, f"{name}self_attn.")
        if full
        else _delta_net(take, text, f"{name}linear_attn."),
        post_norm=take(f"{name}post_attention_layernorm.weight", (text.hidden,), plus_one),
        ffn=_ffn(take, text.hidden, text.ffn, f"{name}mlp.")
        if text.moe is None
        else _moe(take, text.hidden, text.moe, f"{name}mlp."),
    )


def _ffn(take: Take, hidden: int, ffn: int, name: str) -> FfnWeights:
    return FfnWeights(
        gate=take(f"{name}gate_proj.weight", (ffn, hidden)),
        up=take(f"{name}up_proj.weight", (ffn, hidden)),
        down=take(f"{name}down_proj.weight", (hidden, ffn)),
    )


def _moe(take: Take, hidden: int, moe: MoeConfig, name: str) -> MoeWeights:
    router = take(f"{name}gate.weight", (moe.experts, hidden))
    gate_up, down = _experts(take, hidden, moe, f"{name}experts.")
    return MoeWeights(
        router=router,
        gate_up=gate_up,
        down=down,
        shared=_ffn(take, hidden, moe.shared_ffn, f"{name}shared_expert."),
        shared_gate=take(f"{name}shared_expert_gate.weight", (1, hidden)),
    )


def _experts(take: Take, hidden: int, moe: MoeConfig, name: str) -> tuple[F32, F32]:
    """Released files hold the experts of a layer in two tensors, repacks may hold three for each of them."""
    wide, deep = (moe.experts, 2 * moe.ffn, hidden), (moe.experts, hidden, moe.ffn)
    if not take.has(f"{name}0.gate_proj.weight"):
        return take(f"{name}gate_up_proj", wide), take(f"{name}down_proj", deep)
    each = [_ffn(take, hidden, moe.ffn, f"{name}{index}.") for index in range(moe.experts)]
    gate_up = stack_experts([part for one in each for part in (one.gate, one.up)], wide)
    return gate_up, stack_experts([one.down for one in each], deep)


def _delta_net(take: Take, text: TextConfig, name: str) -> DeltaNetWeights:
    conv, value_heads, kernel = text.conv_channels, text.value_heads, text.conv_kernel
    return DeltaNetWeights(
        qkv=take(f"{name}in_proj_qkv.weight", (conv, text.hidden)),
        z=take(f"{name}in_proj_z.weight", (text.value_size, text.hidden)),
        b=take(f"{name}in_proj_b.weight", (value_heads, text.hidden)),
        a=take(f"{name}in_proj_a.weight", (value_heads, text.hidden)),
        conv=take(f"{name}conv1d.weight", (conv, 1, kernel), flatten_rows),
        neg_exp_a=take(f"{name}A_log", (value_heads,), neg_exp),
        dt_bias=take(f"{name}dt_bias", (value_heads,)),
        gdn_norm=take(f"{name}norm.weight", (text.value_dim,)),
        out=take(f"{name}out_proj.weight", (text.hidden, text.value_size)),
    )


def _full_attention(take: Take, text: TextConfig, name: str) -> FullAttentionWeights:
    query, key = text.heads * text.head_dim, text.kv_heads * text.head_dim
    return FullAttentionWeights(
        q=take(f"{name}q_proj.weight", (2 * query, text.hidden)),
        k=take(f"{name}k_proj.weight", (key, text.hidden)),
        v=take(f"{name}v_proj.weight", (key, text.hidden)),
        o=take(f"{name}o_proj.weight", (text.hidden, query)),
        q_norm=take(f"{name}q_norm.weight", (text.head_dim,), plus_one),
        k_norm=take(f"{name}k_norm.weight", (text.head_dim,), plus_one),
    )


def _mtp(take: Take, text: TextConfig) -> MtpWeights:
    return MtpWeights(
        fc=take("mtp.fc.weight", (text.hidden, 2 * text.hidden)),
        embedding_norm=take("mtp.pre_fc_norm_embedding.weight", (text.hidden,), plus_one),
        hidden_norm=take("mtp.pre_fc_norm_hidden.weight", (text.hidden,), plus_one),
        layers=tuple(
            _layer(take, text, f"mtp.layers.{index}.", True) for index in range(text.num_mtp_layers)
        ),
        norm=take("mtp.norm.weight", (text.hidden,), plus_one),
    )


def _vision(take: Take, vision: VisionConfig) -> VisionWeights:
    name, dim, merged = "model.visual.", vision.hidden, vision.hidden * vision.merge_size**2
    patch = (dim, vision.in_channels, vision.temporal_patch_size, vision.patch_size, vision.patch_size)
    return VisionWeights(
        patch=take(f"{name}patch_embed.proj.weight", patch, sum_frames),
        patch_bias=take(f"{name}patch_embed.proj.bias", (dim,)),
        positions=take(f"{name}pos_embed.weight", (vision.grid_side**2, dim)),
        blocks=tuple(_block(take, vision, f"{name}blocks.{index}.") for index in range(vision.depth)),
        merger_norm=take(f"{name}merger.norm.weight", (dim,)),
        merger_norm_bias=take(f"{name}merger.norm.bias", (dim,)),
        merger_fc1=take(f"{name}merger.linear_fc1.weight", (merged, merged)),
        merger_fc1_bias=take(f"{name}merger.linear_fc1.bias", (merged,)),
        merger_fc2=take(f"{name}merger.linear_fc2.weight", (vision.out_hidden, merged)),
        merger_fc2_bias=take(f"{name}merger.linear_fc2.bias", (vision.out_hidden,)),
    )


def _block(take: Take, vision: VisionConfig, name: str) -> VisionBlockWeights:
    dim, ffn = vision.hidden, vision.ffn
    return VisionBlockWeights(
        norm1=take(f"{name}norm1.weight", (dim,)),
        norm1_bias=take(f"{name}norm1.bias", (dim,)),
        qkv=take(f"{name}attn.qkv.weight", (3 * dim, dim)),
        qkv_bias=take(f"{name}attn.qkv.bias", (3 * dim,)),
        proj=take(f"{name}attn.proj.weight", (dim, dim)),
        proj_bias=take(f"{name}attn.proj.bias", (dim,)),
        norm2=take(f"{name}norm2.weight", (dim,)),
        norm2_bias=take(f"{name}norm2.bias", (dim,)),
        fc1=take(f"{name}mlp.linear_fc1.weight", (ffn, dim)),
        fc1_bias=take(f"{name}mlp.linear_fc1.bias", (ffn,)),
        fc2=take(f"{name}mlp.linear_fc2.weight", (dim, ffn)),
        fc2_bias=take(f"{name}mlp.linear_fc2.bias", (dim,)),
    )
