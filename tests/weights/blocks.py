"""Random valid blocks of quantised types, built by hand for those that the ``gguf`` package cannot write."""

from __future__ import annotations

import gguf
import numpy as np
import numpy.typing as npt

__all__ = ["WRITABLE", "quantise", "random_blocks"]

U8 = npt.NDArray[np.uint8]

WRITABLE = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1")
_SCALES = {
    # offsets of float16 scales in a block, and how much they are shrunk below the wanted size of a weight
    "Q4_0": {0: 8},
    "Q4_1": {0: 8, 2: 1},
    "Q5_0": {0: 16},
    "Q5_1": {0: 16, 2: 1},
    "Q8_0": {0: 64},
    "Q4_K": {0: 256, 2: 32},
    "Q5_K": {0: 512, 2: 32},
    "Q6_K": {208: 1024},
    "IQ4_XS": {0: 1024},
}


def random_blocks(name: str, count: int, rng: np.random.Generator, size: float = 1.0) -> U8:
    """[count, bytes per block] of random bits with finite non-zero scales; weights are of about ``size``."""
    kind = gguf.GGMLQuantizationType[name]
    blocks = rng.integers(0, 256, (count, gguf.GGML_QUANT_SIZES[kind][1]), dtype=np.uint8)
    for offset, shrink in _SCALES[name].items():
        scale = (rng.uniform(0.5, 1.0, count) * rng.choice([-1, 1], count) * size / shrink).astype(np.float16)
        scale = np.where(scale == 0, np.float16(6e-8), scale).astype("<f2")
        blocks[:, offset : offset + 2] = scale.view(np.uint8).reshape(count, 2)
    return blocks


def quantise(values: npt.NDArray[np.float32], name: str, rng: np.random.Generator) -> npt.NDArray[np.generic]:
    """``values`` in the layout of a type: by ``gguf`` where it can, random blocks of the same size otherwise."""
    kind = gguf.GGMLQuantizationType[name]
    if name in WRITABLE:
        return gguf.quants.quantize(values, kind)
    block = gguf.GGML_QUANT_SIZES[kind][0]
    blocks = random_blocks(name, values.size // block, rng, float(np.abs(values).mean()))
    return blocks.reshape(*values.shape[:-1], -1)
