"""Tiny Qwen3.5 checkpoints with random weights, and what transformers computes from them.

Needs torch and transformers (made with torch 2.13.0 and transformers 5.23.0 on a CPU), safetensors, pillow; luce needs
neither of the first two. From the repository root::

    python -m tools.golden.make              # all variants into tests/golden
    python -m tools.golden.make r2 r3        # some of them

A folder holds a checkpoint as published ones are (names, bf16, A_log and the DeltaNet norm in f32; no ``mtp.*``), split
so that no file reaches 1 MB, and two archives of results of the f32 run of exactly these rounded weights:

    text.npz   input_ids [T], logits [T, V], layers [L, T, h]; greedy_prompt, greedy_tokens, greedy_margins
    image.npz  image0… (uint8 pictures), pixel_values, grid_thw, vision_rows, input_ids, position_ids [3, T],
               rope_delta, logits; greedy_tokens, greedy_margins (best minus second-best logit of every greedy step)
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file
from transformers import (
    Qwen3_5Config,
    Qwen3_5ForConditionalGeneration,
    Qwen3_5MoeConfig,
    Qwen3_5MoeForConditionalGeneration,
)
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

VOCAB, HIDDEN = 200, 48
VISION_START, VISION_END, IMAGE, VIDEO, EOS = 190, 191, 192, 193, 194
PATCH, MERGE = 8, 2
SHARD_BYTES = 900_000
MODELS = {
    "qwen3_5": (Qwen3_5Config, Qwen3_5ForConditionalGeneration),
    "qwen3_5_moe": (Qwen3_5MoeConfig, Qwen3_5MoeForConditionalGeneration),
}
F32_TENSORS = ("A_log", "linear_attn.norm.weight")


@attrs.frozen
class Variant:
    name: str
    seed: int
    ratio: int
    """Value heads per key head."""
    images: int
    tied: bool = False
    real_heads: bool = False
    """head_dim 256 with sections 11/11/10 and DeltaNet heads of 128, as released models have."""
    experts: int = 0
    """0: dense."""
    used: int = 0
    """Experts of a row."""
    text_length: int = 150
    """More than two DeltaNet chunks of 64 and more than one split of 128 keys."""


VARIANTS = (
    Variant("r1-tied", 11, ratio=1, images=1, tied=True),
    Variant("r2", 12, ratio=2, images=3),
    Variant("r3", 13, ratio=3, images=2),
    Variant("real-heads-r2-tied", 14, ratio=2, images=2, tied=True, real_heads=True),
    Variant("real-heads-r3", 15, ratio=3, images=1, real_heads=True),
    Variant("moe-r2", 30, ratio=2, images=3, experts=8, used=3),
    Variant("moe-real-heads-r2-tied", 16, ratio=2, images=2, tied=True, real_heads=True, experts=16, used=8),
)


def raw_config(variant: Variant) -> dict[str, Any]:
    """config.json of the variant."""
    layers = 4 if variant.real_heads else 8
    head_dim, dim = (256, 128) if variant.real_heads else (64, 16)
    kind = "qwen3_5_moe" if variant.experts else "qwen3_5"
    text = {
        "model_type": f"{kind}_text",
        "dtype": "bfloat16",
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "num_hidden_layers": layers,
        "layer_types": ["full_attention" if i % 4 == 3 else "linear_attention" for i in range(layers)],
        "num_attention_heads": 2 if variant.real_heads else 4,
        "num_key_value_heads": 1 if variant.real_heads else 2,
        "head_dim": head_dim,
        "attn_output_gate": True,
        "attention_bias": False,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 2 * variant.ratio,
        "linear_key_head_dim": dim,
        "linear_value_head_dim": dim,
        "linear_conv_kernel_dim": 4,
        "max_position_embeddings": 4096,
        "mtp_num_hidden_layers": 0,
        "bos_token_id": EOS,
        "eos_token_id": EOS,
        "tie_word_embeddings": variant.tied,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10_000_000,
            "partial_rotary_factor": 0.25,
            "mrope_interleaved": True,
            "mrope_section": [11, 11, 10] if variant.real_heads else [3, 3, 2],
        },
    }
    if variant.experts:
        text |= {
            "num_experts": variant.experts,
            "num_experts_per_tok": variant.used,
            "moe_intermediate_size": 16,
            "shared_expert_intermediate_size": 24,
        }
    else:
        text["intermediate_size"] = 80
    vision = {
        "model_type": kind,
        "depth": 2,
        "hidden_size": 48,
        "intermediate_size": 56,
        "num_heads": 3,
        "in_channels": 3,
        "hidden_act": "gelu_pytorch_tanh",
        "patch_size": PATCH,
        "spatial_merge_size": MERGE,
        "temporal_patch_size": 2,
        "out_hidden_size": HIDDEN,
        "num_position_embeddings": 36,
        "deepstack_visual_indexes": [],
    }
    return {
        "architectures": [MODELS[kind][1].__name__],
        "model_type": kind,
        "image_token_id": IMAGE,
        "video_token_id": VIDEO,
        "vision_start_token_id": VISION_START,
        "vision_end_token_id": VISION_END,
        "tie_word_embeddings": variant.tied,
        "text_config": text,
        "vision_config": vision,
    }


def random_value(name: str, shape: torch.Size, draw: torch.Generator) -> torch.Tensor:
    """Values that keep logits some units apart and reach strong and weak decays."""
    normal = torch.randn(shape, generator=draw)
    if name.endswith("A_log"):
        return torch.log(0.02 + 3 * torch.rand(shape, generator=draw))
    if name.endswith("dt_bias"):
        return normal - 1
    if len(shape) == 1:
        around_one = "linear_attn.norm" in name or ("visual" in name and name.endswith("weight"))
        return float(around_one) + 0.2 * normal
    if "embed" in name or "lm_head" in name or "conv1d" in name:
        return 0.5 * normal
    return normal / math.sqrt(shape[-1] if "experts." in name else math.prod(shape[1:]))


def build(variant: Variant, raw: dict[str, Any]) -> Any:
    """The model in f32, its weights rounded to what the files hold."""
    config_class, model_class = MODELS[raw["model_type"]]
    config = config_class(**json.loads(json.dumps(raw)))
    config._attn_implementation = "eager"
    model = model_class(config).float().eval()
    draw = torch.Generator().manual_seed(variant.seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            value = random_value(name, parameter.shape, draw)
            parameter.copy_(value if name.endswith(F32_TENSORS) else value.bfloat16().float())
    return model


def save_checkpoint(folder: Path, variant: Variant, raw: dict[str, Any], model: torch.nn.Module) -> None:
    """config.json and its companions, and the tensors in files under SHARD_BYTES."""
    area = (PATCH * MERGE) ** 2
    preprocessor = {
        "size": {"shortest_edge": 4 * area, "longest_edge": 64 * area},
        "patch_size": PATCH,
        "temporal_patch_size": 2,
        "merge_size": MERGE,
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
        "image_processor_type": "Qwen2VLImageProcessorFast",
        "processor_class": "Qwen3VLProcessor",
    }
    generation = {"bos_token_id": EOS, "eos_token_id": [EOS], "do_sample": False}
    for name, content in (
        ("config", raw),
        ("preprocessor_config", preprocessor),
        ("generation_config", generation),
    ):
        (folder / f"{name}.json").write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")
    shards: list[dict[str, torch.Tensor]] = [{}]
    room = SHARD_BYTES
    for name, tensor in model.state_dict().items():
        if variant.tied and name == "lm_head.weight":
            continue
        stored = tensor.clone() if name.endswith(F32_TENSORS) else tensor.bfloat16()
        if stored.nbytes > room:
            shards.append({})
            room = SHARD_BYTES
        shards[-1][name] = stored.contiguous()
        room -= stored.nbytes
    if len(shards) == 1:
        save_file(shards[0], folder / "model.safetensors", metadata={"format": "pt"})
        return
    where = {}
    for number, shard in enumerate(shards, 1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        save_file(shard, folder / file, metadata={"format": "pt"})
        where |= dict.fromkeys(shard, file)
    total = sum(tensor.nbytes for shard in shards for tensor in shard.values())
    index = {"metadata": {"total_size": total}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1, sort_keys=True) + "\n")


def greedy(model: Any, count: int, **inputs: torch.Tensor) -> dict[str, torch.Tensor]:
    """Greedy continuation with the margin of each choice."""
    length = inputs["input_ids"].shape[1]
    result = model.generate(
        **inputs,
        attention_mask=torch.ones(1, length, dtype=torch.long),
        max_new_tokens=count,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
        output_logits=True,
        return_dict_in_generate=True,
    )
    best = torch.stack([row[0].topk(2).values for row in result.logits])
    return {
        "greedy_tokens": result.sequences[0, length:],
        "greedy_margins": best[:, 0] - best[:, 1],
    }


def watch_routers(model: Any) -> list[float]:
    """The margin between the last expert that is chosen and the first that is not, in logits, of every row to come.

    Where it is under 1e-4 or so, rounding may decide: take another seed.
    """
    found: list[float] = []

    def note(module: Any, _args: Any, out: Any) -> None:
        best = out[0].topk(module.top_k + 1, dim=-1).values
        found.append(float((best[:, -2] - best[:, -1]).min()))

    for layer in model.model.language_model.layers:
        if hasattr(layer.mlp, "gate"):
            layer.mlp.gate.register_forward_hook(note)
    return found


def text_results(model: Any, variant: Variant) -> dict[str, torch.Tensor]:
    rng = np.random.default_rng(variant.seed)
    ids = torch.tensor(rng.integers(0, 180, (1, variant.text_length)))
    hidden: list[torch.Tensor] = []
    hooks = [
        layer.register_forward_hook(
            lambda _module, _args, out: hidden.append((out[0] if isinstance(out, tuple) else out).clone())
        )
        for layer in model.model.language_model.layers
    ]
    logits = model(input_ids=ids).logits[0]
    for hook in hooks:
        hook.remove()
    layers = torch.stack([rows.reshape(variant.text_length, HIDDEN) for rows in hidden])
    prompt = ids[:, :11]
    return {
        "input_ids": ids[0],
        "logits": logits,
        "layers": layers,
        "greedy_prompt": prompt[0],
        **greedy(model, 24, input_ids=prompt),
    }


def picture(height: int, width: int, seed: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Gradients and noise."""
    y, x = np.mgrid[0:height, 0:width]
    planes = np.stack([255 * x // width, 255 * y // height, (x + y) * 7 % 256], axis=-1)
    noise = np.random.default_rng(seed).integers(-40, 40, planes.shape)
    return np.clip(planes + noise, 0, 255).astype(np.uint8)


def image_results(model: Any, folder: Path, variant: Variant) -> dict[str, Any]:
    settings = json.loads((folder / "preprocessor_config.json").read_text())
    unit = PATCH * MERGE
    # Wide, tall and square; all keep their size, so that no resampling takes part.
    sizes = [(2 * unit, 5 * unit), (6 * unit, 2 * unit), (3 * unit, 3 * unit)][: variant.images]
    pictures = [picture(h, w, variant.seed + i) for i, (h, w) in enumerate(sizes)]
    names = ("image_processor_type", "processor_class")
    processor = Qwen2VLImageProcessorPil(**{k: v for k, v in settings.items() if k not in names})
    features = processor(images=[Image.fromarray(p) for p in pictures], return_tensors="pt")
    pixels, grid = features["pixel_values"], features["image_grid_thw"]
    between = [[5, 7, 11], [13, 17], [19]]
    ids: list[int] = []
    for lead, (_, gh, gw) in zip(between, grid.tolist(), strict=False):
        ids += [*lead, VISION_START, *[IMAGE] * (gh * gw // MERGE**2), VISION_END]
    ids += [23, 29, 31, 37]
    tokens = torch.tensor([ids])
    kinds = (tokens == IMAGE).int()
    positions, delta = model.model.get_rope_index(tokens, mm_token_type_ids=kinds, image_grid_thw=grid)
    inputs = {
        "input_ids": tokens,
        "mm_token_type_ids": kinds,
        "pixel_values": pixels,
        "image_grid_thw": grid,
    }
    return {
        **{f"image{i}": p for i, p in enumerate(pictures)},
        "pixel_values": pixels,
        "grid_thw": grid,
        "vision_rows": model.model.visual(pixels, grid_thw=grid).pooler_output,
        "input_ids": tokens[0],
        "position_ids": positions[:, 0],
        "rope_delta": delta.reshape(-1),
        "logits": model(**inputs).logits[0],
        **greedy(model, 24, **inputs),
    }


def save_results(path: Path, results: dict[str, Any]) -> None:
    arrays = {
        name: value.detach().numpy() if torch.is_tensor(value) else value for name, value in results.items()
    }
    np.savez_compressed(path, **arrays)


@torch.no_grad()
def make(variant: Variant, into: Path) -> None:
    folder = into / variant.name
    folder.mkdir(parents=True, exist_ok=True)
    raw = raw_config(variant)
    model = build(variant, raw)
    save_checkpoint(folder, variant, raw, model)
    again = MODELS[raw["model_type"]][1].from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )
    again.eval()
    if variant.experts:
        again.set_experts_implementation("eager")
    routers = watch_routers(again)
    text = text_results(again, variant)  # from the saved files, so that they are what was run
    image = image_results(again, folder, variant)
    save_results(folder / "text.npz", text)
    save_results(folder / "image.npz", image)
    margins = min(float(text["greedy_margins"].min()), float(image["greedy_margins"].min()))
    nearest = f", nearest choice of experts {min(routers):.1e}" if routers else ""
    print(
        f"{variant.name}: largest logit {float(text['logits'].abs().max()):.1f}, smallest margin {margins:.3f}{nearest}"
    )


def main(names: list[str]) -> None:
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    known = {variant.name: variant for variant in VARIANTS}
    for name in names or known:
        make(known[name], Path("tests/golden"))


if __name__ == "__main__":
    main(sys.argv[1:])
