"""GGUF names, shapes and value forms to canonical weights (spec qwen35 §17, §18).

A GGUF differs from safetensors in names, in value heads (tiled order), in norms (the 1 is folded in) and in
the decay (``-exp(A_log)`` itself). Shapes here are in numpy order.
"""

from __future__ import annotations

from luce.engines.qwen35.config import MoeConfig, TextConfig, VisionConfig
from luce.engines.qwen35.conversions import (
    as_row,
    columns_to_grouped,
    flatten_rows,
    rows_to_grouped,
    stack_experts,
)
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

__all__ = ["HINTS", "gguf_text", "gguf_vision"]

HINTS = (
    ("rope_freqs", "context extension is not served"),
    ("v.deepstack", "extra image features per layer are not served"),
)


def gguf_text(take: Take, text: TextConfig, vision: VisionWeights | None) -> Qwen35Weights:
    """The text model, joined with the vision tower that :func:`gguf_vision` made."""
    embed = take("token_embd.weight", (text.vocab_size, text.hidden))
    return Qwen35Weights(
        embed=embed,
        layers=tuple(
            _layer(take, text, f"blk.{index}.", full) for index, full in enumerate(text.full_attention)
        ),
        final_norm=take("output_norm.weight", (text.hidden,)),
        head=embed if text.tied else take("output.weight", (text.vocab_size, text.hidden)),
        vision=vision,
        mtp=_mtp(take, text) if text.num_mtp_layers else None,
    )


def _layer(take: Take, text: TextConfig, name: str, full: bool) -> LayerWeights:
    return LayerWeights(
        input_norm=take(f"{name}attn_norm.weight", (text.hidden,)),
        mixer=_full_attention(take, text, name) if full else _delta_net(take, text, name),
        post_norm=take(f"{name}post_attention_norm.weight", (text.hidden,)),
        ffn=_ffn(take, text.hidden, text.ffn, name, "")
        if text.moe is None
        else _moe(take, text.hidden, text.moe, name),
    )


def _ffn(take: Take, hidden: int, ffn: int, name: str, kind: str) -> FfnWeights:
    return FfnWeights(
        gate=take(f"{name}ffn_gate{kind}.weight", (ffn, hidden)),
        up=take(f"{name}ffn_up{kind}.weight", (ffn, hidden)),
        down=take(f"{name}ffn_down{kind}.weight", (hidden, ffn)),
    )


def _moe(take: Take, hidden: int, moe: MoeConfig, name: str) -> MoeWeights:
    wide, half = (moe.experts, 2 * moe.ffn, hidden), (moe.experts, moe.ffn, hidden)
    router = take(f"{name}ffn_gate_inp.weight", (moe.experts, hidden))
    if take.has(f"{name}ffn_gate_up_exps.weight"):  # some converters fuse them, most do not
        gate_up = take(f"{name}ffn_gate_up_exps.weight", wide)
    else:
        parts = [take(f"{name}ffn_{part}_exps.weight", half) for part in ("gate", "up")]
        gate_up = stack_experts(parts, wide)
    return MoeWeights(
        router=router,
        gate_up=gate_up,
        down=take(f"{name}ffn_down_exps.weight", (moe.experts, hidden, moe.ffn)),
        shared=_ffn(take, hidden, moe.shared_ffn, name, "_shexp"),
        shared_gate=take(f"{name}ffn_gate_inp_shexp.weight", (hidden,), as_row),
    )


def _delta_net(take: Take, text: TextConfig, name: str) -> DeltaNetWeights:
    heads = rows_to_grouped(text.key_heads, text.value_heads)
    # the q and k rows before the value heads are in the same order in both forms
    after_keys = rows_to_grouped(text.key_heads, text.value_heads, 2 * text.key_heads * text.key_dim)
    columns = columns_to_grouped(text.key_heads, text.value_heads)
    conv, value_heads = text.conv_channels, text.value_heads
    return DeltaNetWeights(
        qkv=take(f"{name}attn_qkv.weight", (conv, text.hidden), after_keys),
        z=take(f"{name}attn_gate.weight", (text.value_size, text.hidden), heads),
        b=take(f"{name}ssm_beta.weight", (value_heads, text.hidden), heads),
        a=take(f"{name}ssm_alpha.weight", (value_heads, text.hidden), heads),
        conv=take(f"{name}ssm_conv1d.weight", (conv, text.conv_kernel), after_keys),
        neg_exp_a=take(f"{name}ssm_a", (value_heads,), heads),
        dt_bias=take(f"{name}ssm_dt.bias", (value_heads,), heads),
        gdn_norm=take(f"{name}ssm_norm.weight", (text.value_dim,)),
        out=take(f"{name}ssm_out.weight", (text.hidden, text.value_size), columns),
    )


def _full_attention(take: Take, text: TextConfig, name: str) -> FullAttentionWeights:
    query, key = text.heads * text.head_dim, text.kv_heads * text.head_dim
    return FullAttentionWeights(
        q=take(f"{name}attn_q.weight", (2 * query, text.hidden)),
        k=take(f"{name}attn_k.weight", (key, text.hidden)),
        v=take(f"{name}attn_v.weight", (key, text.hidden)),
        o=take(f"{name}attn_output.weight", (text.hidden, query)),
        q_norm=take(f"{name}attn_q_norm.weight", (text.head_dim,)),
        k_norm=take(f"{name}attn_k_norm.weight", (text.head_dim,)),
    )


def _mtp(take: Take, text: TextConfig) -> MtpWeights:
    """MTP blocks stand after the main layers; the tensors around them carry the first one's number."""
    first = f"blk.{text.num_layers}."
    return MtpWeights(
        fc=take(f"{first}nextn.eh_proj.weight", (text.hidden, 2 * text.hidden)),
        embedding_norm=take(f"{first}nextn.enorm.weight", (text.hidden,)),
        hidden_norm=take(f"{first}nextn.hnorm.weight", (text.hidden,)),
        layers=tuple(
            _layer(take, text, f"blk.{text.num_layers + index}.", True)
            for index in range(text.num_mtp_layers)
        ),
        norm=take(f"{first}nextn.shared_head_norm.weight", (text.hidden,)),
    )


def gguf_vision(take: Take, vision: VisionConfig) -> VisionWeights:
    """The vision tower of an mmproj. Its patch embedding comes as one tensor per frame."""
    dim, merged = vision.hidden, vision.hidden * vision.merge_size**2
    frame = (dim, vision.in_channels, vision.patch_size, vision.patch_size)
    patch = take("v.patch_embd.weight", frame, flatten_rows)
    patch += take("v.patch_embd.weight.1", frame, flatten_rows)
    return VisionWeights(
        patch=patch,
        patch_bias=take("v.patch_embd.bias", (dim,)),
        positions=take("v.position_embd.weight", (vision.grid_side**2, dim)),
        blocks=tuple(_block(take, vision, f"v.blk.{index}.") for index in range(vision.depth)),
        merger_norm=take("v.post_ln.weight", (dim,)),
        merger_norm_bias=take("v.post_ln.bias", (dim,)),
        merger_fc1=take("mm.0.weight", (merged, merged)),
        merger_fc1_bias=take("mm.0.bias", (merged,)),
        merger_fc2=take("mm.2.weight", (vision.out_hidden, merged)),
        merger_fc2_bias=take("mm.2.bias", (vision.out_hidden,)),
    )


def _block(take: Take, vision: VisionConfig, name: str) -> VisionBlockWeights:
    dim, ffn = vision.hidden, vision.ffn
    return VisionBlockWeights(
        norm1=take(f"{name}ln1.weight", (dim,)),
        norm1_bias=take(f"{name}ln1.bias", (dim,)),
        qkv=take(f"{name}attn_qkv.weight", (3 * dim, dim)),
        qkv_bias=take(f"{name}attn_qkv.bias", (3 * dim,)),
        proj=take(f"{name}attn_out.weight", (dim, dim)),
        proj_bias=take(f"{name}attn_out.bias", (dim,)),
        norm2=take(f"{name}ln2.weight", (dim,)),
        norm2_bias=take(f"{name}ln2.bias", (dim,)),
        fc1=take(f"{name}ffn_up.weight", (ffn, dim)),
        fc1_bias=take(f"{name}ffn_up.bias", (ffn,)),
        fc2=take(f"{name}ffn_down.weight", (dim, ffn)),
        fc2_bias=take(f"{name}ffn_down.bias", (dim,)),
    )
