"""Writers of tiny random Qwen3.5 models in every file form that luce reads, for tests of loading and serving.

:func:`random_model` makes a model in memory (configuration and tensors with their Hugging Face names);
:func:`write_hf` and :func:`write_gguf` store it. Values are multiples that bfloat16 holds exactly, so a bf16 directory
and an F32 GGUF of one model must load to equal bits. The reorder and value changes of a GGUF are written out here from
the specification, independently of the loader.

    model = random_model(TinyShape(ratio=2, tied=True), seed=1)
    write_hf(tmp_path / "hf", model)
    write_gguf(tmp_path / "gguf", model, quant="Q8_0")
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.weights.gguf_writers import write_gguf, write_gguf_file
from tests.weights.tiny_model import K_QUANT_SHAPE, MOE_SHAPE, TinyModel, TinyShape, random_model
from tests.weights.tiny_tokenizer import (
    CHAT_TEMPLATE,
    NUM_TOKENS,
    TOKEN_IDS,
    tokenizer_config,
    tokenizer_json,
)

__all__ = [
    "K_QUANT_SHAPE",
    "MOE_SHAPE",
    "NUM_TOKENS",
    "TOKEN_IDS",
    "TinyModel",
    "TinyShape",
    "random_model",
    "write_gguf",
    "write_gguf_file",
    "write_hf",
    "write_safetensors",
]

F32 = npt.NDArray[np.float32]


def write_safetensors(
    path: Path, tensors: Mapping[str, F32], dtypes: Mapping[str, str] | str = "F32"
) -> None:
    """A safetensors file. ``dtypes`` is "F32", "F16" or "BF16" for all tensors or by name."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    parts, at = [], 0
    for name, values in tensors.items():
        dtype = dtypes if isinstance(dtypes, str) else dtypes.get(name, "F32")
        raw = _encode(values, dtype)
        header[name] = {"dtype": dtype, "shape": list(values.shape), "data_offsets": [at, at + len(raw)]}
        parts.append(raw)
        at += len(raw)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(parts))


def _encode(values: F32, dtype: str) -> bytes:
    if dtype == "BF16":
        return (np.ascontiguousarray(values).view(np.uint32) >> 16).astype("<u2").tobytes()
    return np.ascontiguousarray(values).astype({"F32": "<f4", "F16": "<f2"}[dtype]).tobytes()


def write_hf(folder: Path, model: TinyModel, *, dtype: str = "BF16", shards: int = 1) -> Path:
    """A Hugging Face directory with tokenizer, template, generation and preprocessing files.

    Args:
        dtype: of the matrices; ``A_log`` and ``linear_attn.norm`` are always F32.
        shards: more than 1 writes parts and an index.
    """
    folder.mkdir(parents=True, exist_ok=True)
    keep = ("A_log", "linear_attn.norm.weight")
    dtypes = {name: "F32" if name.endswith(keep) else dtype for name in model.tensors}
    if shards == 1:
        write_safetensors(folder / "model.safetensors", model.tensors, dtypes)
    else:
        placed = {}
        for part in range(shards):
            name = f"model-{part + 1:05}-of-{shards:05}.safetensors"
            chosen = dict(list(model.tensors.items())[part::shards])
            write_safetensors(folder / name, chosen, dtypes)
            placed |= dict.fromkeys(chosen, name)
        index = {"metadata": {"total_size": 0}, "weight_map": placed}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    unit = model.shape.patch_size * 2
    texts = {
        "config.json": model.config,
        "generation_config.json": {
            "eos_token_id": [TOKEN_IDS["<|im_end|>"], TOKEN_IDS["<|endoftext|>"]],
            "do_sample": True,
            "temperature": 1.0,
            "top_k": 20,
            "top_p": 0.95,
        },
        "tokenizer.json": tokenizer_json(),
        "tokenizer_config.json": tokenizer_config(),
    }
    if model.shape.vision:
        texts["preprocessor_config.json"] = {
            "size": {"shortest_edge": 4 * unit**2, "longest_edge": 64 * unit**2},
            "patch_size": model.shape.patch_size,
            "temporal_patch_size": 2,
            "merge_size": 2,
            "image_mean": [0.5, 0.5, 0.5],
            "image_std": [0.5, 0.5, 0.5],
            "image_processor_type": "Qwen2VLImageProcessorFast",
        }
    for name, value in texts.items():
        (folder / name).write_text(json.dumps(value, indent=1))
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    return folder
