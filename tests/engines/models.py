"""Random models: tiny ones of real structure, and one of the bundled model's shape."""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt

from luce.engines.qwen35.config import MoeConfig, Qwen35Config, TextConfig, VisionConfig
from luce.engines.qwen35.weights import (
    DeltaNetWeights,
    FfnWeights,
    FullAttentionWeights,
    LayerWeights,
    MoeWeights,
    Qwen35Weights,
    VisionBlockWeights,
    VisionWeights,
)

F32 = npt.NDArray[np.float32]

IMAGE = 117
SAMPLED_IDS = 115
"""Recorders choose among the ids below."""
NAN_TOKEN = 118
"""Its embedding is NaN: a sequence that holds it fails, and nobody else may notice."""


def tiny_config(
    *,
    ratio: int = 2,
    group: int = 2,
    dk: int = 16,
    dv: int = 32,
    tied: bool = False,
    layers: int = 4,
    moe: MoeConfig | None = None,
) -> Qwen35Config:
    """Few layers, real structure: value heads > key heads, Dk ≠ Dv, grouped queries, partial M-RoPE."""
    text = TextConfig(
        vocab_size=120,
        hidden=64,
        num_layers=layers,
        ffn=96 if moe is None else 0,
        heads=2 * group,
        kv_heads=2,
        head_dim=32,
        key_heads=2,
        value_heads=2 * ratio,
        key_dim=dk,
        value_dim=dv,
        conv_kernel=4,
        full_attention=tuple((i + 1) % 4 == 0 for i in range(layers)),
        rms_eps=1e-6,
        rope_theta=1e7,
        rotary_dim=8,
        mrope_section=(2, 1, 1),
        max_positions=4096,
        tied=tied,
        moe=moe,
    )
    vision = VisionConfig(
        depth=2,
        hidden=48,
        heads=3,
        ffn=56,
        patch_size=4,
        temporal_patch_size=2,
        merge_size=2,
        grid_side=6,
        out_hidden=64,
    )
    return Qwen35Config(text, vision, IMAGE, 115, 116, (119,))


def demo_config(vocab: int = 2112) -> Qwen35Config:
    """The bundled model's shape."""
    text = TextConfig(
        vocab_size=vocab,
        hidden=256,
        num_layers=8,
        ffn=640,
        heads=2,
        kv_heads=1,
        head_dim=256,
        key_heads=2,
        value_heads=4,
        key_dim=128,
        value_dim=128,
        conv_kernel=4,
        full_attention=tuple((i + 1) % 4 == 0 for i in range(8)),
        rms_eps=1e-6,
        rope_theta=1e7,
        rotary_dim=64,
        mrope_section=(11, 11, 10),
        max_positions=4096,
        tied=True,
    )
    vision = VisionConfig(
        depth=4,
        hidden=192,
        heads=3,
        ffn=768,
        patch_size=16,
        temporal_patch_size=2,
        merge_size=2,
        grid_side=48,
        out_hidden=256,
    )
    return Qwen35Config(text, vision, IMAGE, 115, 116, (119,))


def random_weights(config: Qwen35Config, seed: int = 0, *, gates: float = 1.0) -> Qwen35Weights:
    """Weights whose logits are a few units apart. ``gates`` scales the log decays: 1 reaches about -3."""
    rng = np.random.default_rng(seed)
    t = config.text

    def matrix(out: int, inside: int, scale: float = 1.0) -> F32:
        return (rng.standard_normal((out, inside)) * scale / inside**0.5).astype(np.float32)

    def norm(size: int) -> F32:
        return (1 + 0.2 * rng.standard_normal(size)).astype(np.float32)

    def vector(size: int) -> F32:
        return (0.2 * rng.standard_normal(size)).astype(np.float32)

    def mixer(full: bool) -> DeltaNetWeights | FullAttentionWeights:
        if full:
            return FullAttentionWeights(
                matrix(2 * t.heads * t.head_dim, t.hidden),
                matrix(t.kv_heads * t.head_dim, t.hidden),
                matrix(t.kv_heads * t.head_dim, t.hidden),
                matrix(t.hidden, t.heads * t.head_dim),
                norm(t.head_dim),
                norm(t.head_dim),
            )
        return DeltaNetWeights(
            matrix(t.conv_channels, t.hidden),
            matrix(t.value_size, t.hidden),
            matrix(t.value_heads, t.hidden),
            matrix(t.value_heads, t.hidden),
            (0.5 * rng.standard_normal((t.conv_channels, 4))).astype(np.float32),
            (-gates * (0.02 + 3 * rng.random(t.value_heads))).astype(np.float32),
            (rng.standard_normal(t.value_heads) - 1).astype(np.float32),
            norm(t.value_dim),
            matrix(t.hidden, t.value_size),
        )

    def swiglu(ffn: int) -> FfnWeights:
        return FfnWeights(matrix(ffn, t.hidden), matrix(ffn, t.hidden), matrix(t.hidden, ffn))

    def ffn() -> FfnWeights | MoeWeights:
        if t.moe is None:
            return swiglu(t.ffn)
        e, i = t.moe.experts, t.moe.ffn
        return MoeWeights(
            matrix(e, t.hidden),
            matrix(e * 2 * i, t.hidden).reshape(e, 2 * i, t.hidden),
            matrix(e * t.hidden, i).reshape(e, t.hidden, i),
            swiglu(t.moe.shared_ffn),
            matrix(1, t.hidden),
        )

    layers = tuple(
        LayerWeights(norm(t.hidden), mixer(full), norm(t.hidden), ffn()) for full in t.full_attention
    )
    embed = (0.6 * rng.standard_normal((t.vocab_size, t.hidden))).astype(np.float32)
    head = embed if t.tied else (0.5 * rng.standard_normal((t.vocab_size, t.hidden))).astype(np.float32)
    if t.vocab_size == 120:
        embed[NAN_TOKEN] = np.nan if not t.tied else embed[NAN_TOKEN]
    vision = None
    if config.vision is not None:
        v = config.vision
        d, wide = v.hidden, v.hidden * v.merge_size**2

        def block() -> VisionBlockWeights:
            return VisionBlockWeights(
                norm(d),
                vector(d),
                matrix(3 * d, d),
                vector(3 * d),
                matrix(d, d),
                vector(d),
                norm(d),
                vector(d),
                matrix(v.ffn, d),
                vector(v.ffn),
                matrix(d, v.ffn),
                vector(d),
            )

        vision = VisionWeights(
            matrix(d, 3 * v.patch_size**2),
            vector(d),
            (0.6 * rng.standard_normal((v.grid_side**2, d))).astype(np.float32),
            tuple(block() for _ in range(v.depth)),
            norm(d),
            vector(d),
            matrix(wide, wide),
            vector(wide),
            matrix(v.out_hidden, wide),
            vector(v.out_hidden),
        )
    return Qwen35Weights(embed, layers, norm(t.hidden), head, vision, None)


MIXTURE = MoeConfig(experts=7, used=3, ffn=40, shared_ffn=24)
"""Widths that are no whole panels, and experts that are no whole tiles."""


@functools.cache
def tiny_model(
    seed: int = 0, ratio: int = 2, group: int = 2, *, moe: MoeConfig | None = None
) -> tuple[Qwen35Config, Qwen35Weights]:
    config = tiny_config(ratio=ratio, group=group, moe=moe)
    return config, random_weights(config, seed)
