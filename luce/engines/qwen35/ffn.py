"""The feed-forward of a dense layer (spec qwen35 §8)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from luce.compute.ops import swiglu
from luce.compute.tiles import padded
from luce.engines.qwen35.packed import PackedFfn

__all__ = ["Ffn"]

F32 = npt.NDArray[np.float32]


class Ffn:
    """Scratch and maths of SwiGLU; one instance serves all layers of an engine, on its thread only."""

    def __init__(self, ffn: int, weights: PackedFfn, max_rows: int) -> None:
        """``ffn``: hidden values. ``weights``: of any layer, for the shapes."""
        self.ffn = ffn
        self._gate_up: F32 = np.zeros((padded(max_rows), weights.gate_up.width), np.float32)
        self._middle: F32 = np.zeros((padded(max_rows), ffn), np.float32)

    def __call__(self, w: PackedFfn, x: F32, out: F32, rows: int) -> None:
        """``out[:rows]`` = the layer's feed-forward of x[:rows].

        x [padded, hidden]: normalised rows; out [padded, ≥ hidden] as the output product wants it.
        """
        w.gate_up(x, self._gate_up, rows)
        swiglu(self._gate_up[:rows, : 2 * self.ffn], out=self._middle[:rows])
        w.down(self._middle, out, rows)
