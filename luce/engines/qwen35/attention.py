"""Gated full attention over paged keys and values in fixed splits (spec qwen35 §6, performance §4.5).

Keys are taken in splits of 64 at absolute positions. A split's products have one fixed shape; missing keys are zero
rows and hidden ones get probability exactly zero, so a row's bits depend on neither the batch nor on how far the
sequence was computed beside it. The row maximum is exact in any order, so no running rescale is needed; the splits'
sums are added in ascending order. Keys and values are always read back as stored.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from luce.compute.ops import sigmoid, unit_norm
from luce.compute.tiles import HEIGHTS, ONE_ROW, TILE, Heights, padded, safe_heights, tile_spans
from luce.engines.qwen35.batch import SPLIT, AttentionLane, Batch, SplitRun
from luce.engines.qwen35.config import TextConfig
from luce.engines.qwen35.packed import PackedAttention
from luce.engines.qwen35.state import MAX_LANE_ROWS, KvLayer

__all__ = ["Attention", "attention_heights"]

F32 = npt.NDArray[np.float32]

_MINUS_INF = np.float32(-np.inf)
_ZERO = np.float32(0.0)

SCORE_BUDGET = 1 << 19
"""Most scores held at once; longer prefixes take a lane's rows in smaller groups."""


def attention_heights(kv_heads: int, head_dim: int) -> Heights:
    """Row-tile heights that keep bits in both products of a split, for keys and values as the pool stores them."""
    rng = np.random.default_rng(2)
    stored = rng.standard_normal((SPLIT, kv_heads, head_dim)).astype(np.float32)
    keys = safe_heights(stored[:, 0].T)
    values = safe_heights(stored[:, 0])
    for heights in (HEIGHTS, (TILE,), (4,)):
        if set(heights) <= set(keys) and set(heights) <= set(values):
            return heights
    return ONE_ROW


class Attention:
    """Scratch and maths of the mixer; one instance serves all layers of an engine, on its thread only."""

    def __init__(self, config: TextConfig, weights: PackedAttention, max_rows: int, max_context: int) -> None:
        """``weights``: of any attention layer, for the shapes. ``max_context`` in tokens."""
        self.heads, self.kv_heads, self.dim = config.heads, config.kv_heads, config.head_dim
        self.group = self.heads // self.kv_heads
        self.rotary = config.rotary_dim
        self.eps = np.float32(config.head_dim * config.rms_eps)
        self.row_heights = attention_heights(self.kv_heads, self.dim)
        rows = padded(max_rows)

        def new(*shape: int) -> F32:
            return np.zeros(shape, np.float32)

        self._inputs = new(rows, weights.inputs.width)
        self._qk = new(rows, self.heads + self.kv_heads, self.dim)
        self._turned = new(rows, self.heads + self.kv_heads, 2, self.rotary // 2)
        self._mixed = new(rows, self.heads * self.dim)
        self._gate = new(rows, self.heads, self.dim)
        tile_rows = padded(MAX_LANE_ROWS * self.group)
        self._q = new(self.kv_heads, tile_rows, self.dim)
        keys = -(-max_context // SPLIT) * SPLIT
        self._most_scores = max(SCORE_BUDGET, self.kv_heads * padded(self.group) * keys)
        self._scores = new(self._most_scores)
        self._parts = new(self._most_scores // SPLIT * self.dim)
        self._gathered = new(SPLIT, self.kv_heads, self.dim)

    def __call__(self, w: PackedAttention, kv: KvLayer, batch: Batch, x: F32, out: F32) -> None:
        """``out[:R]`` = mixer(x[:R]); the rows' keys and values go into ``kv``.

        x [padded, hidden]: normalised input rows; out [padded, ≥ hidden] as the output product wants it.
        """
        rows, heads = batch.rows, self.heads
        inputs = self._inputs
        w.inputs(x, inputs, rows)
        query_gate, key, value = (inputs[:rows, part] for part in w.parts)
        pair = query_gate.reshape(rows, heads, 2, self.dim)
        qk = self._qk[:rows]
        qk[:, :heads] = pair[:, :, 0]
        qk[:, heads:] = key.reshape(rows, self.kv_heads, self.dim)
        unit_norm(qk, self.eps, out=qk)
        np.multiply(qk, w.qk_norm, out=qk)
        self._rotate(qk, batch)
        kv.k[batch.kv_rows] = qk[:, heads:]
        kv.v[batch.kv_rows] = value.reshape(rows, self.kv_heads, self.dim)
        q = qk[:, :heads].reshape(rows, self.kv_heads, self.group, self.dim)
        mixed = self._mixed[:rows].reshape(rows, self.kv_heads, self.group, self.dim)
        for lane in batch.attention:
            self._lane(lane, kv, q, mixed)
        gate = sigmoid(pair[:, :, 1], self._gate[:rows])
        flat = self._mixed[:rows].reshape(rows, heads, self.dim)
        np.multiply(flat, gate, out=flat)
        w.out(self._mixed, out, rows)

    def _rotate(self, qk: F32, batch: Batch) -> None:
        """Turn the leading ``rotary`` dims of every head, pairs (j, j + rotary / 2)."""
        rows, heads = qk.shape[:2]
        leading = qk[:, :, : self.rotary].reshape(rows, heads, 2, self.rotary // 2)
        turned = self._turned[:rows]
        np.multiply(leading[:, :, ::-1], batch.sin, out=turned)
        np.multiply(leading, batch.cos, out=leading)
        np.add(leading, turned, out=leading)

    def _lane(self, lane: AttentionLane, kv: KvLayer, q: F32, mixed: F32) -> None:
        tile_rows = self._most_scores // (self.kv_heads * lane.splits * SPLIT) // TILE * TILE
        most = max(1, tile_rows // self.group)
        for first in range(0, lane.count, most):
            self._rows(lane, first, min(most, lane.count - first), kv, q, mixed)

    def _rows(self, lane: AttentionLane, first: int, count: int, kv: KvLayer, q: F32, mixed: F32) -> None:
        """Attend rows ``first`` … of the lane: scores of all splits, softmax, values."""
        hkv, dim, splits = self.kv_heads, self.dim, lane.splits
        at, used = lane.row + first, count * self.group
        spans = tile_spans(used, self.row_heights)
        tile_rows = spans[-1][0] + spans[-1][1] * spans[-1][2]
        tiles = self._q[:, :tile_rows]
        tiles[:, :used] = q[at : at + count].transpose(1, 0, 2, 3).reshape(hkv, used, dim)
        size = hkv * tile_rows * splits
        scores = self._scores[: size * SPLIT].reshape(hkv, tile_rows, splits, SPLIT)
        for run in lane.runs:
            keys = self._split(kv.k, run, pad=False).transpose(2, 0, 3, 1)
            for row, tile_count, height in spans:
                shape = (hkv, tile_count, height)
                rows = slice(row, row + tile_count * height)
                target = scores[:, rows, run.first : run.stop].reshape(*shape, -1, SPLIT)
                np.matmul(
                    tiles[:, rows].reshape(hkv, tile_count, 1, height, dim),
                    keys[:, None],
                    out=target.transpose(0, 1, 3, 2, 4),
                )
        flat = scores.reshape(hkv, tile_rows, splits * SPLIT)
        self._hide(lane, first, count, flat)
        np.subtract(flat, np.max(flat, axis=-1, keepdims=True), out=flat)
        np.exp(flat, out=flat)
        total = np.add.reduce(scores, axis=-1)
        if splits > 1:
            total = np.add.accumulate(total, axis=-1)
        parts = self._parts[: size * dim].reshape(hkv, tile_rows, splits, dim)
        for run in lane.runs:
            values = self._split(kv.v, run, pad=True).transpose(2, 0, 1, 3)
            for row, tile_count, height in spans:
                shape = (hkv, tile_count, height)
                rows = slice(row, row + tile_count * height)
                probabilities = scores[:, rows, run.first : run.stop].reshape(*shape, -1, SPLIT)
                target = parts[:, rows, run.first : run.stop].reshape(*shape, -1, dim)
                np.matmul(
                    probabilities.transpose(0, 1, 3, 2, 4),
                    values[:, None],
                    out=target.transpose(0, 1, 3, 2, 4),
                )
        # From zero in ascending order. No zero stays negative, so a split without a visible key adds nothing at all.
        result = np.add.reduce(parts, axis=2, initial=_ZERO)
        np.divide(result, total[:, :, -1:], out=result)
        mixed[at : at + count] = result[:, :used].reshape(hkv, count, self.group, dim).transpose(1, 0, 2, 3)

    def _hide(self, lane: AttentionLane, first: int, count: int, flat: F32) -> None:
        """Scores of keys after a row's own position become minus infinity."""
        if lane.mask is None:
            flat[:, :, lane.masked_from :] = _MINUS_INF
            return
        used = count * self.group
        hidden = np.repeat(lane.mask[first : first + count], self.group, axis=0)
        np.copyto(flat[:, :used, lane.masked_from :], _MINUS_INF, where=hidden)

    def _split(self, stored: F32, run: SplitRun, *, pad: bool) -> F32:
        """Rows of a run of splits, [splits, SPLIT, Hkv, D]: a view of the pool, or gathered.

        ``pad``: missing rows are exact zeros. Missing keys may hold anything, since their scores are hidden.
        """
        if run.at >= 0:
            rows = stored[run.at : run.at + (run.stop - run.first) * SPLIT]
            return rows.reshape(run.stop - run.first, SPLIT, self.kv_heads, self.dim)
        gathered = self._gathered
        for to, at, rows_count in run.pieces:
            gathered[to : to + rows_count] = stored[at : at + rows_count]
        if pad:
            gathered[run.pieces[-1][0] + run.pieces[-1][2] :] = 0.0
        return gathered[None]
