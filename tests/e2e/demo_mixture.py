"""The bundled model as a mixture of experts: what it knows in the shared expert, and beside it experts that disagree.

Its answers are good enough to be long and to depend on pictures, and no two rows need have the same experts.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np

from luce.engines.load_model import demo_model
from luce.weights.gguf_file import open_gguf
from tests.weights.gguf_writers import write_gguf_file

__all__ = ["EXPERTS", "USED", "write_demo_mixture"]

EXPERTS, USED, FFN = 8, 3, 64
NOISE = 0.2
"""Size of the experts' part beside the shared one's."""


def write_demo_mixture(folder: Path) -> Path:
    """Write the text GGUF and its mmproj; the path of the folder."""
    (dense,) = [path for path in demo_model().glob("*.gguf") if not path.name.startswith("mmproj")]
    source = open_gguf(dense)
    rng = np.random.default_rng(3)
    tensors: dict[str, Any] = {}
    for name in source.tensors:
        values = source.load(name)
        block, _, part = name.partition(".ffn_")
        if not part:
            tensors[name] = values
            continue
        kind = part.removesuffix(".weight")
        # the shared expert's gate is one half everywhere
        tensors[f"{block}.ffn_{kind}_shexp.weight"] = values * np.float32(2) if kind == "down" else values
        if kind != "gate":
            continue
        hidden = values.shape[1]
        tensors[f"{block}.ffn_gate_inp.weight"] = _noise(rng, EXPERTS, hidden)
        tensors[f"{block}.ffn_gate_inp_shexp.weight"] = np.zeros(hidden, np.float32)
        tensors[f"{block}.ffn_gate_exps.weight"] = _noise(rng, EXPERTS, FFN, hidden)
        tensors[f"{block}.ffn_up_exps.weight"] = _noise(rng, EXPERTS, FFN, hidden)
        tensors[f"{block}.ffn_down_exps.weight"] = NOISE * _noise(rng, EXPERTS, hidden, FFN)
    folder.mkdir(parents=True, exist_ok=True)
    write_gguf_file(folder / "mixture.gguf", _metadata(source.metadata), tensors, "Q8_0")
    shutil.copy(next(demo_model().glob("mmproj*.gguf")), folder / "mmproj.gguf")
    return folder


def _noise(rng: np.random.Generator, *shape: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return rng.standard_normal(shape, np.float32) / np.float32(shape[-1] ** 0.5)


def _metadata(source: Any) -> dict[str, Any]:
    found = {
        key.replace("qwen35.", "qwen35moe."): value.tolist() if isinstance(value, np.ndarray) else value
        for key, value in source.items()
        if key != "qwen35.feed_forward_length"
    }
    experts = {
        "expert_count": EXPERTS,
        "expert_used_count": USED,
        "expert_feed_forward_length": FFN,
        "expert_shared_feed_forward_length": source["qwen35.feed_forward_length"],
    }
    return found | {
        "general.architecture": "qwen35moe",
        "general.name": "luce-demo as a mixture",
        **{f"qwen35moe.{key}": value for key, value in experts.items()},
    }
