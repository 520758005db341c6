"""Random matrices in the bytes of a file's format."""

from __future__ import annotations

import gguf
import numpy as np

from luce.compute.bf16 import round_bf16
from luce.weights import formats


def random_rows(name: str, rows: int, depth: int, seed: int = 0) -> np.ndarray:
    """uint8 [rows, bytes of a row]: every code, scale and minimum at random; super-block scales are small numbers."""
    rng = np.random.default_rng([seed, rows, depth, *name.encode()])
    if name in ("F32", "F16", "BF16"):
        values = (rng.standard_normal((rows, depth)) * 0.05).astype(np.float32)
        if name == "BF16":
            return round_bf16(values).view(np.uint8)
        return values.astype(np.float16 if name == "F16" else np.float32).view(np.uint8)
    raw = rng.integers(0, 256, formats.num_bytes(name, (rows, depth)), dtype=np.uint8)
    blocks = raw.reshape(-1, gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]][1])
    low, high = (1e-4, 8e-4) if name == "Q8_0" else (1e-3, 8e-3) if name == "Q4_0" else (1e-5, 8e-5)
    scales = rng.uniform(low, high, (len(blocks), 2))
    if name in ("Q4_K", "Q5_K"):
        scales[:, 1] *= 7.5  # the minima's
    bits = scales.astype(np.float16).view(np.uint8)
    at = slice(208, 210) if name == "Q6_K" else slice(0, 4 if name in ("Q4_K", "Q5_K") else 2)
    blocks[:, at] = bits[:, : at.stop - at.start]
    return raw.reshape(rows, -1)
