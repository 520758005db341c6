"""The feed-forward of a mixture of experts (spec qwen35 §8), exact per row.

Rows are sorted by expert, each expert's rows go through its two products in exact tiles, and what comes out is added up
per row, the best expert first. So a row's bits come from its own experts in its own order, whoever else chose them.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from luce.compute.ops import sigmoid, swiglu
from luce.compute.tiles import TILE, padded
from luce.engines.qwen35.config import MoeConfig
from luce.engines.qwen35.packed import PackedMoe

__all__ = ["Moe", "route"]

F32 = npt.NDArray[np.float32]
Ints = npt.NDArray[np.intp]


def route(logits: F32, used: int) -> tuple[Ints, F32]:
    """Experts of each row and their weights.

    Args:
        logits: [R, E] of the router.
        used: how many experts a row goes through.

    Returns:
        Experts [R, used], the largest logit first and the lower index first among equals; and weights [R, used], the
        softmax over these alone, which is what is left of one over all experts when the weights are made to sum to 1.
    """
    chosen = np.argsort(-logits, axis=-1, kind="stable")[:, :used]
    best = np.take_along_axis(logits, chosen, axis=-1)
    weights: F32 = best - best[:, :1]
    np.exp(weights, out=weights)
    total = weights[:, 0].copy()
    for rank in range(1, used):  # one after the other: a reduction's order would depend on their number
        total += weights[:, rank]
    weights /= total[:, None]
    return chosen, weights


class Moe:
    """Scratch and maths of the experts; one instance serves all layers of an engine, on its thread only."""

    def __init__(self, config: MoeConfig, hidden: int, weights: PackedMoe, max_rows: int) -> None:
        """``weights``: of any layer, for the shapes."""
        self.config, self.hidden = config, hidden
        expert, rows = weights.experts[0], padded(max_rows)
        pairs = rows * config.used + TILE
        """A row with one of its experts; the last ones are padding."""

        def new(*shape: int) -> F32:
            return np.zeros(shape, np.float32)

        self._inputs = new(rows, weights.inputs.width)
        self._shared = new(rows, config.shared_ffn)
        self._total = new(rows, hidden)
        self._term = new(rows, expert.down.width)
        self._gate_up = new(pairs, expert.gate_up.width)
        self._middle = new(pairs, config.ffn)
        self._results = new(pairs, expert.down.width)
        # the rows that go in are not needed any more when those that come out are written
        self._gathered = self._results.reshape(-1)[: pairs * hidden].reshape(pairs, hidden)

    def __call__(self, w: PackedMoe, x: F32, out: F32, rows: int) -> None:
        """``out[:rows]`` = the layer's feed-forward of x[:rows].

        x [padded, hidden]: normalised rows; out [padded, ≥ hidden] as the shared expert's output product wants it.
        """
        w.inputs(x, self._inputs, rows)
        gate_up, logits, gate = (self._inputs[:rows, part] for part in w.parts)
        swiglu(gate_up, out=self._shared[:rows])
        w.shared_down(self._shared, out, rows)
        shared = out[:rows, : self.hidden]
        np.multiply(shared, sigmoid(gate, np.empty_like(gate)), out=shared)
        total = self._experts(w, x[:rows], *route(logits, self.config.used))
        np.add(total, shared, out=shared)

    def _experts(self, w: PackedMoe, x: F32, chosen: Ints, weights: F32) -> F32:
        """The weighted sum [R, hidden] of each row's experts, in ``_total``."""
        rows, used = chosen.shape
        pairs = rows * used
        order = np.argsort(chosen, axis=None, kind="stable")
        counts = np.bincount(chosen.reshape(-1), minlength=self.config.experts)
        first = np.cumsum(counts) - counts
        np.take(x, order // used, axis=0, out=self._gathered[:pairs], mode="clip")
        # In ascending order: the padding of an expert's last tile is rows of the next ones, which come later.
        groups = [(w.experts[e], int(first[e]), int(counts[e])) for e in np.flatnonzero(counts)]
        for expert, at, count in groups:
            expert.gate_up(self._gathered[at:], self._gate_up[at:], count)
        swiglu(self._gate_up[:pairs, : 2 * self.config.ffn], out=self._middle[:pairs])
        for expert, at, count in groups:
            expert.down(self._middle[at:], self._results[at:], count)
        place = np.empty(pairs, np.intp)
        place[order] = np.arange(pairs)
        place = place.reshape(rows, used)
        total = self._total[:rows]
        term = self._term[:rows]
        for rank in range(used):
            np.take(self._results, place[:, rank], axis=0, out=term, mode="clip")
            result = term[:, : self.hidden]
            if rank:
                np.multiply(result, weights[:, rank, None], out=result)
                np.add(total, result, out=total)
            else:
                np.multiply(result, weights[:, rank, None], out=total)
        return total
