"""Models of random weights in a file's format, made on the device: for benchmarks of shapes whose files are not here.

A few row-blocks of each shape are made and packed on the host, scaled as trained weights are, and the device repeats
them until a matrix is full: speed does not depend on values as long as they are numbers of ordinary size, and 27
billion of them are there in seconds.
"""

from __future__ import annotations

import functools

import attrs
import gguf
import numpy as np
import numpy.typing as npt

from luce.compute.bf16 import round_bf16
from luce.engines.qwen35.config import Qwen35Config
from luce.engines.qwen35.conversions import Convert
from luce.engines.qwen35.device.deferred import LEAST_COLUMNS, DeferredTensor, MatrixRows
from luce.engines.qwen35.hf_files import hf_weights
from luce.engines.qwen35.synthetic import SyntheticTake
from luce.engines.qwen35.weights import Qwen35Weights
from luce.weights import formats

__all__ = ["HEAD_FORMATS", "SyntheticSource", "synthetic_device_weights"]

U8 = npt.NDArray[np.uint8]

HEAD_FORMATS = {"Q4_K": "Q6_K", "Q5_K": "Q6_K", "IQ4_XS": "Q6_K"}
"""Format of head and embedding beside matrices of a format, where it is another one."""
MADE_ROWS = 64
"""Rows that are made; a matrix repeats them."""
ROUTERS = ("mlp.gate.weight", "shared_expert_gate.weight")
SCALES = {"Q6_K": slice(208, 210), "Q4_K": slice(0, 4), "Q5_K": slice(0, 4)}
"""Where the float16 scales of a block stand; elsewhere in its first two bytes."""


@functools.lru_cache(maxsize=64)
def random_rows(name: str, depth: int) -> U8:
    """[64, bytes of a row] whose values have the standard deviation depth^-0.5."""
    rng = np.random.default_rng([35, depth, *name.encode()])
    if name in ("F32", "F16", "BF16"):
        values = (rng.standard_normal((MADE_ROWS, depth)) / depth**0.5).astype(np.float32)
        if name == "BF16":
            plain: U8 = round_bf16(values).view(np.uint8)
        else:
            plain = values.astype(np.float16 if name == "F16" else np.float32).view(np.uint8)
        return plain
    raw = rng.integers(0, 256, formats.num_bytes(name, (MADE_ROWS, depth)), dtype=np.uint8)
    blocks = raw.reshape(-1, gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]][1])
    at = SCALES.get(name, slice(0, 2))
    scale = 1e-3
    for _ in range(2):  # once to see how large the values are, once to make them as large as they should be
        pair = scale * rng.uniform(0.5, 1.5, (len(blocks), 1)) * np.array([1.0, 7.5])  # codes average 7.5
        blocks[:, at] = pair.astype(np.float16).view(np.uint8)[:, : at.stop - at.start]
        scale /= float(np.std(formats.decode(name, raw, (MADE_ROWS, depth)))) * depth**0.5
    rows: U8 = raw.reshape(MADE_ROWS, -1)
    return rows


@attrs.frozen(eq=False)
class SyntheticSource:
    """Where a matrix would stand."""

    format: str
    depth: int

    def rows(self) -> MatrixRows:
        """The rows that are repeated."""
        return MatrixRows(self.format, self.depth, random_rows(self.format, self.depth), repeats=True)

    def expert(self, number: int) -> MatrixRows:
        return self.rows()


@attrs.frozen(eq=False)
class RouterSource:
    """Rows of a router in bf16: no two may be alike, or experts would be chosen in groups."""

    values: npt.NDArray[np.float32]
    format: str = "BF16"

    def rows(self) -> MatrixRows:
        return MatrixRows("BF16", self.values.shape[1], round_bf16(self.values).view(np.uint8))

    def expert(self, number: int) -> MatrixRows:
        raise NotImplementedError("a router is no expert")


class _Take:
    """A :class:`~luce.engines.qwen35.take.Take` of matrices in ``form`` and small tensors in float32."""

    def __init__(self, config: Qwen35Config, form: str) -> None:
        self._small = SyntheticTake(config.text.num_layers, 1)
        self._form = form

    def has(self, name: str) -> bool:
        return self._small.has(name)

    def __call__(
        self, name: str, shape: tuple[int, ...], convert: Convert | None = None
    ) -> npt.NDArray[np.float32]:
        form = self._form
        if name.endswith(ROUTERS):
            made = self._small(name, shape, convert)
            return DeferredTensor.of(RouterSource(made), shape) if form == "BF16" else made
        experts = len(shape) == 3 and ".experts." in name
        if name.startswith("model.visual.") or not (
            experts or (len(shape) == 2 and shape[1] >= LEAST_COLUMNS)
        ):
            return self._small(name, shape, convert)
        if "embed_tokens" in name or "lm_head" in name:
            form = HEAD_FORMATS.get(form, form)
        elif "in_proj_a" in name or "in_proj_b" in name or shape[-1] % formats.block_size(form):
            form = "BF16"
        return DeferredTensor.of(SyntheticSource(form, shape[-1]), shape)


def synthetic_device_weights(config: Qwen35Config, form: str) -> Qwen35Weights:
    """Matrices of the text model in ``form``, a name of :mod:`luce.weights.formats`; the rest in float32."""
    return hf_weights(_Take(config, form), config, "model.")
