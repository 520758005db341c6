"""Reads the golden folders: config and weights straight from the files, without luce's loaders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import safe_open

from luce.engines.qwen35.config import Qwen35Config, TextConfig, VisionConfig
from luce.engines.qwen35.weights import (
    DeltaNetWeights,
    FullAttentionWeights,
    LayerWeights,
    Qwen35Weights,
    VisionBlockWeights,
    VisionWeights,
)

F32 = npt.NDArray[np.float32]

FOLDERS = sorted(path.parent for path in Path(__file__).parent.glob("*/config.json"))


def read_config(folder: Path) -> Qwen35Config:
    raw = json.loads((folder / "config.json").read_text())
    t, v = raw["text_config"], raw["vision_config"]
    text = TextConfig(
        vocab_size=t["vocab_size"],
        hidden=t["hidden_size"],
        num_layers=t["num_hidden_layers"],
        ffn=t["intermediate_size"],
        heads=t["num_attention_heads"],
        kv_heads=t["num_key_value_heads"],
        head_dim=t["head_dim"],
        key_heads=t["linear_num_key_heads"],
        value_heads=t["linear_num_value_heads"],
        key_dim=t["linear_key_head_dim"],
        value_dim=t["linear_value_head_dim"],
        conv_kernel=t["linear_conv_kernel_dim"],
        full_attention=tuple(kind == "full_attention" for kind in t["layer_types"]),
        rms_eps=t["rms_norm_eps"],
        rope_theta=t["rope_parameters"]["rope_theta"],
        rotary_dim=int(t["head_dim"] * t["rope_parameters"]["partial_rotary_factor"]),
        mrope_section=tuple(t["rope_parameters"]["mrope_section"]),
        max_positions=t["max_position_embeddings"],
        tied=raw["tie_word_embeddings"],
    )
    vision = VisionConfig(
        depth=v["depth"],
        hidden=v["hidden_size"],
        heads=v["num_heads"],
        ffn=v["intermediate_size"],
        patch_size=v["patch_size"],
        temporal_patch_size=v["temporal_patch_size"],
        merge_size=v["spatial_merge_size"],
        grid_side=round(v["num_position_embeddings"] ** 0.5),
        out_hidden=v["out_hidden_size"],
    )
    return Qwen35Config(
        text, vision, raw["image_token_id"], raw["vision_start_token_id"], raw["vision_end_token_id"], (194,)
    )


def _read_tensors(path: Path) -> dict[str, F32]:
    with safe_open(path, "numpy") as f:  # bf16 has no numpy type: read the bytes
        names = list(f.keys())
    raw = path.read_bytes()
    header_size = int.from_bytes(raw[:8], "little")
    header: dict[str, Any] = json.loads(raw[8 : 8 + header_size])
    tensors = {}
    for name in names:
        entry = header[name]
        low, high = (8 + header_size + offset for offset in entry["data_offsets"])
        if entry["dtype"] == "BF16":
            bits = np.frombuffer(raw[low:high], np.uint16).astype(np.uint32) << 16
            values = bits.view(np.float32)
        else:
            values = np.frombuffer(raw[low:high], np.float32)
        tensors[name] = np.ascontiguousarray(values.reshape(entry["shape"]))
    return tensors


def read_weights(folder: Path, config: Qwen35Config) -> Qwen35Weights:
    t = _read_tensors(folder / "model.safetensors")
    base = "model.language_model."
    one = np.float32(1)

    def layer(i: int) -> LayerWeights:
        p = f"{base}layers.{i}."
        if config.text.full_attention[i]:
            a = p + "self_attn."
            mixer: DeltaNetWeights | FullAttentionWeights = FullAttentionWeights(
                *(t[f"{a}{n}_proj.weight"] for n in "qkvo"),
                q_norm=one + t[a + "q_norm.weight"],
                k_norm=one + t[a + "k_norm.weight"],
            )
        else:
            a = p + "linear_attn."
            mixer = DeltaNetWeights(
                *(t[f"{a}in_proj_{n}.weight"] for n in ("qkv", "z", "b", "a")),
                conv=np.ascontiguousarray(t[a + "conv1d.weight"][:, 0]),
                neg_exp_a=-np.exp(t[a + "A_log"]),
                dt_bias=t[a + "dt_bias"],
                gdn_norm=t[a + "norm.weight"],
                out=t[a + "out_proj.weight"],
            )
        return LayerWeights(
            one + t[p + "input_layernorm.weight"],
            mixer,
            one + t[p + "post_attention_layernorm.weight"],
            *(t[f"{p}mlp.{n}_proj.weight"] for n in ("gate", "up", "down")),
        )

    def both(name: str) -> tuple[F32, F32]:
        return t[name + ".weight"], t[name + ".bias"]

    def block(j: int) -> VisionBlockWeights:
        p = f"model.visual.blocks.{j}."
        names = ("norm1", "attn.qkv", "attn.proj", "norm2", "mlp.linear_fc1", "mlp.linear_fc2")
        return VisionBlockWeights(*(array for name in names for array in both(p + name)))

    assert config.vision is not None
    v = "model.visual."
    patch = t[v + "patch_embed.proj.weight"]
    vision = VisionWeights(
        np.ascontiguousarray((patch[:, :, 0] + patch[:, :, 1]).reshape(len(patch), -1)),
        t[v + "patch_embed.proj.bias"],
        t[v + "pos_embed.weight"],
        tuple(block(j) for j in range(config.vision.depth)),
        *both(v + "merger.norm"),
        *both(v + "merger.linear_fc1"),
        *both(v + "merger.linear_fc2"),
    )
    embed = t[base + "embed_tokens.weight"]
    return Qwen35Weights(
        embed=embed,
        layers=tuple(layer(i) for i in range(config.text.num_layers)),
        final_norm=one + t[base + "norm.weight"],
        head=embed if config.text.tied else t["lm_head.weight"],
        vision=vision,
        mtp=None,
    )


def read_arrays(folder: Path, name: str) -> dict[str, npt.NDArray[Any]]:
    with np.load(folder / f"{name}.npz") as data:
        return {key: data[key] for key in data}


def one_frame(pixel_values: F32, patch: int) -> F32:
    """Rows of one frame from the reference's rows of two equal frames ([channel][frame][y][x])."""
    rows = pixel_values.reshape(len(pixel_values), 3, 2, patch, patch)
    assert np.array_equal(rows[:, :, 0], rows[:, :, 1])
    return np.ascontiguousarray(rows[:, :, 0].reshape(len(rows), -1))
