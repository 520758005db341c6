"""Random weights in the shape of a model, scaled as trained ones are, so that activations stay in range.

Speed does not depend on values as long as they are numbers of ordinary size: zeros and infinities are special to
sparse paths, to power draw and to experts' routers, so there are none.
"""

from __future__ import annotations

import zlib

import attrs
import numpy as np
import numpy.typing as npt

from luce.engines.qwen35.config import Qwen35Config
from luce.engines.qwen35.conversions import Convert, plus_one
from luce.engines.qwen35.hf_files import hf_weights
from luce.engines.qwen35.take import LoadProgress, ProgressCallback
from luce.engines.qwen35.weights import Qwen35Weights

__all__ = ["SyntheticTake", "synthetic_bytes", "synthetic_weights"]

F32 = npt.NDArray[np.float32]

POOL = (1 << 20) + 7
"""Random values that all tensors are tiled from, each from a place of its own. Odd, so that rows differ."""
INTO_RESIDUAL = ("o_proj.weight", "out_proj.weight", "down_proj.weight", "down_proj")
"""Products whose results add up over the layers."""


def synthetic_weights(config: Qwen35Config, progress: ProgressCallback | None = None) -> Qwen35Weights:
    """All weights in float32.

    Args:
        progress: called after each tensor.
    """
    return hf_weights(
        SyntheticTake(config.text.num_layers, synthetic_bytes(config), progress), config, "model."
    )


def synthetic_bytes(config: Qwen35Config) -> int:
    """Of all tensors in float32, as :class:`~luce.engines.qwen35.take.LoadProgress` counts them."""
    counted = _Counter()
    hf_weights(counted, config, "model.")
    return counted.total


@attrs.define(eq=False)
class _Counter:
    total: int = 0

    def __call__(self, name: str, shape: tuple[int, ...], convert: Convert | None = None) -> F32:
        self.total += 4 * int(np.prod(shape, dtype=np.int64))
        return np.empty(0, np.float32)

    def has(self, name: str) -> bool:
        return False


@attrs.define(eq=False)
class SyntheticTake:
    """A :class:`~luce.engines.qwen35.take.Take` of tensors that no file holds, by their safetensors names."""

    layers: int
    total: int
    progress: ProgressCallback | None = None
    done: int = 0
    _pool: F32 = attrs.field(factory=lambda: np.random.default_rng(35).standard_normal(POOL, np.float32))

    def __call__(self, name: str, shape: tuple[int, ...], convert: Convert | None = None) -> F32:
        made = self._values(name, shape, convert)
        if convert is not None:
            made = convert(made)
        self.done += 4 * int(np.prod(shape, dtype=np.int64))
        if self.progress is not None:
            self.progress(LoadProgress(self.done, self.total, name))
        return made

    def has(self, name: str) -> bool:
        """Nothing of what may be stored in one way or another: it is in the released files' way."""
        return False

    def _values(self, name: str, shape: tuple[int, ...], convert: Convert | None) -> F32:
        values: F32 = self._tiled(zlib.crc32(name.encode()), shape)
        if name.endswith("A_log"):  # decays of 1 to 16, as they are initialised
            return np.asarray(np.log(8.5 + 7.5 * np.tanh(values)), np.float32)
        if name.endswith("dt_bias"):  # steps of about 0.01 through softplus
            return np.asarray(np.log(np.expm1(np.exp(values - 4.6))), np.float32)
        if len(shape) == 1:
            scale = "norm" in name and name.endswith("weight") and convert is not plus_one
            return np.float32(scale) + np.float32(0.05) * values
        if name.endswith("conv1d.weight"):
            return np.float32(shape[-1] ** -0.5) * values
        fan_in = np.prod(shape[1:]) if len(shape) != 3 else shape[-1]
        size = float(fan_in) ** -0.5
        if name.endswith(INTO_RESIDUAL):
            size *= (2 * self.layers) ** -0.5
        return np.float32(size) * values

    def _tiled(self, seed: int, shape: tuple[int, ...]) -> F32:
        count = int(np.prod(shape, dtype=np.int64))
        out = np.empty(count, np.float32)
        start, place = 0, seed % POOL
        while start < count:
            length = min(count - start, POOL - place)
            out[start : start + length] = self._pool[place : place + length]
            start, place = start + length, 0
        return out.reshape(shape)
