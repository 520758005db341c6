"""Shapes of the released models of the family (spec qwen35 §1.2), for models without files: benchmarks and plans."""

from __future__ import annotations

import attrs

from luce.engines.qwen35.config import MoeConfig, Qwen35Config, TextConfig, VisionConfig

__all__ = ["RELEASED", "released"]

_VISION_SMALL = (12, 768, 12, 3072)
_VISION_MIDDLE = (24, 1024, 16, 4096)
_VISION_LARGE = (27, 1152, 16, 4304)
"""Depth, hidden, heads, ffn."""

INTERVAL = 4
"""Every so many-th layer has full attention."""


@attrs.frozen
class _Shape:
    hidden: int
    layers: int
    ffn: int
    heads: int
    kv_heads: int
    value_heads: int
    tied: bool
    vision: tuple[int, int, int, int]
    moe: MoeConfig | None = None


RELEASED = {
    "qwen3.5-0.8b": _Shape(1024, 24, 3584, 8, 2, 16, True, _VISION_SMALL),
    "qwen3.5-2b": _Shape(2048, 24, 6144, 8, 2, 16, True, _VISION_MIDDLE),
    "qwen3.5-4b": _Shape(2560, 32, 9216, 16, 4, 32, True, _VISION_MIDDLE),
    "qwen3.5-9b": _Shape(4096, 32, 12288, 16, 4, 32, False, _VISION_LARGE),
    "qwen3.5-27b": _Shape(5120, 64, 17408, 24, 4, 48, False, _VISION_LARGE),
    "qwen3.5-35b-a3b": _Shape(2048, 40, 0, 16, 2, 32, False, _VISION_LARGE, MoeConfig(256, 8, 512, 512)),
}
"""By the name that `luce bench --synthetic` takes."""


def released(name: str) -> Qwen35Config:
    """The configuration of a released model; ids are those of its tokenizer (spec qwen35 §2).

    Raises:
        KeyError: it is none of :data:`RELEASED`.
    """
    shape = RELEASED[name]
    depth, width, heads, ffn = shape.vision
    return Qwen35Config(
        text=TextConfig(
            vocab_size=248_320,
            hidden=shape.hidden,
            num_layers=shape.layers,
            ffn=shape.ffn,
            heads=shape.heads,
            kv_heads=shape.kv_heads,
            head_dim=256,
            key_heads=16,
            value_heads=shape.value_heads,
            key_dim=128,
            value_dim=128,
            conv_kernel=4,
            full_attention=tuple((layer + 1) % INTERVAL == 0 for layer in range(shape.layers)),
            rms_eps=1e-6,
            rope_theta=1e7,
            rotary_dim=64,
            mrope_section=(11, 11, 10),
            max_positions=262_144,
            tied=shape.tied,
            moe=shape.moe,
        ),
        vision=VisionConfig(
            depth=depth,
            hidden=width,
            heads=heads,
            ffn=ffn,
            patch_size=16,
            temporal_patch_size=2,
            merge_size=2,
            grid_side=48,
            out_hidden=shape.hidden,
        ),
        image_token_id=248_056,
        vision_start_id=248_053,
        vision_end_id=248_054,
        eos_token_ids=(248_046, 248_044),
        num_token_ids=248_077,
    )
