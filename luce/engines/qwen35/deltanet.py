"""The gated DeltaNet mixer in chunk form, one arithmetic for prefill and decode (performance §4.4 form C).

Within the 64-chunk that holds a row, with S the state at the chunk's start and G the log decay summed up from there::

    u_i = β_i (v_i − e^{G_i} Sᵀk_i − Σ_{j<i} e^{G_i−G_j} (k_j·k_i) u_j)
    o_i = e^{G_i} Sᵀq_i + Σ_{j<i} e^{G_i−G_j} (k_j·q_i) u_j + (k_i·q_i) u_i

Every product has one fixed shape with fixed roles, whatever the batch: ``[k_i; q_i]`` [2, Dk] times S [Dk, Dv] and
times the chunk's keys [Dk, 64], and two rows of 64 weights times the chunk's corrections [64, Dv], in which rows from
i on are exact zeros at that moment. So no property of BLAS is needed but that equal calls give equal bits.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from luce.compute.ops import sigmoid, silu, softplus, unit_norm
from luce.compute.tiles import padded
from luce.engines.qwen35.batch import Batch, ChunkRows
from luce.engines.qwen35.config import TextConfig
from luce.engines.qwen35.packed import PackedDeltaNet
from luce.engines.qwen35.state import CHUNK, DeltaNetState

__all__ = ["DeltaNet", "commit_chunk", "fold"]

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]

_MINUS_INF = np.float32(-np.inf)
L2_EPS = np.float32(1e-6)
"""Inside the square root of the q and k normalisation (spec qwen35 §5)."""


def fold(s: F32, k: F32, u: F32, g: F64, out: F32) -> None:
    """The state after a whole chunk: ``e^{G_63} S + Σ_j e^{G_63−G_j} k_j u_jᵀ``. ``out`` may be ``s``.

    s, out [Hk, r, Dk, Dv]; k [Hk, 64, Dk]; u [Hk, r, 64, Dv]; g [Hv, 64].
    """
    decay = np.exp((g[:, -1:] - g).astype(np.float32))
    added = np.matmul(k.transpose(0, 2, 1)[:, None], u * decay.reshape(*u.shape[:3], 1))
    gain = np.exp(g[:, -1].astype(np.float32))
    np.multiply(s, gain.reshape(*s.shape[:2], 1, 1), out=out)
    out += added


def commit_chunk(state: DeltaNetState, slot: int, chunk: int) -> None:
    """Fold the whole, committed chunk from ``chunk`` on into S. Its ring rows become exact zeros, free for the chunk
    after next."""
    k, u, g = state.chunk(slot, chunk)
    fold(state.s[slot], k, u, g, out=state.s[slot])
    k[...] = 0.0
    u[...] = 0.0


class DeltaNet:
    """Scratch and maths of the mixer; one instance serves all layers of an engine, on its thread only."""

    def __init__(self, config: TextConfig, weights: PackedDeltaNet, max_rows: int) -> None:
        """``weights``: of any DeltaNet layer, for the shapes."""
        self.hk, self.dk, self.dv = config.key_heads, config.key_dim, config.value_dim
        self.hv = config.value_heads
        self.ratio = self.hv // self.hk
        self.channels = config.conv_channels
        self.eps = np.float32(config.value_dim * config.rms_eps)
        self.q_scale = np.float32(config.key_dim**-0.5)
        rows, hk, r = padded(max_rows), self.hk, self.ratio

        def new(*shape: int) -> F32:
            return np.zeros(shape, np.float32)

        self._inputs = new(rows, weights.inputs.width)
        self._window = new(4 * rows * self.channels)
        self._conv = new(rows, self.channels)
        self._kq = new(rows, hk, 2, self.dk)
        self._g_chunk = np.zeros((rows, self.hv, CHUNK), np.float64)
        self._decay_rows = new(rows, self.hv, CHUNK)
        self._near = new(rows, hk, 2, CHUNK)
        self._far = new(rows, hk, r, 2, self.dv)
        self._weights = new(rows, hk, r, 2, CHUNK)
        self._sums = new(rows, hk, r, 2, self.dv)
        self._x = new(rows, hk, r, self.dv)
        self._gate = new(rows, self.hv * self.dv)
        self._mixed = new(rows, self.hv * self.dv)
        self._state = new(hk, r, self.dk, self.dv)

    def __call__(self, w: PackedDeltaNet, state: DeltaNetState, batch: Batch, x: F32, out: F32) -> None:
        """``out[:R]`` = mixer(x[:R]); ``state`` takes the rows in.

        x [padded, hidden]: normalised input rows; out [padded, ≥ hidden] as the output product wants it.
        """
        rows = batch.rows
        for slot, chunk in batch.folds:
            commit_chunk(state, slot, chunk)
        inputs = self._inputs
        w.inputs(x, inputs, rows)
        qkv, z, b, a = (inputs[:rows, part] for part in w.parts)
        kq, v = self._convolve(w, state, batch, qkv)
        beta = sigmoid(b, np.empty_like(b)).reshape(rows, self.hk, self.ratio, 1)
        g = softplus(a + w.dt_bias)
        g *= w.neg_exp_a
        decay, gain = self._decay(state, batch, g.astype(np.float64))
        self._chunk_rows(state, batch, kq, v, beta, decay, gain)
        mixed = self._output(batch, beta, gain)
        unit_norm(mixed, self.eps, out=mixed)
        gate = silu(z, self._gate[:rows])
        flat = self._mixed
        np.multiply(flat[:rows], gate, out=flat[:rows])
        w.out(flat, out, rows)

    def _convolve(self, w: PackedDeltaNet, state: DeltaNetState, batch: Batch, qkv: F32) -> tuple[F32, F32]:
        """Causal convolution of 4 taps, silu, and unit keys and queries.

        Returns kq [R, Hk, 2, Dk] (key, then query scaled by Dk^-0.5) and v [R, Hk, r, Dv].
        """
        rows, channels = batch.rows, self.channels
        flat = state.conv.reshape(-1, channels)
        flat[batch.conv_write] = qkv
        window = self._window[: 4 * rows * channels].reshape(4 * rows, channels)
        np.take(flat, batch.conv_read, axis=0, out=window, mode="clip")
        taps = window.reshape(4, rows, channels)
        np.multiply(taps, w.taps, out=taps)
        total = taps[0]
        for tap in taps[1:]:
            np.add(total, tap, out=total)
        y = silu(total, self._conv[:rows])
        keys = self.hk * self.dk
        kq = self._kq[:rows]
        heads = y[:, : 2 * keys].reshape(rows, 2, self.hk, self.dk)
        kq[:, :, 0] = heads[:, 1]
        kq[:, :, 1] = heads[:, 0]
        unit_norm(kq, L2_EPS, out=kq)
        np.multiply(kq[:, :, 1], self.q_scale, out=kq[:, :, 1])
        return kq, y[:, 2 * keys :].reshape(rows, self.hk, self.ratio, self.dv)

    def _decay(self, state: DeltaNetState, batch: Batch, g: F64) -> tuple[F32, F32]:
        """Sum ``g`` [R, Hv] up inside its chunks, in place and into the ring.

        Returns e^{G_i − G_j} [R, Hv, 64], exact zeros for j > i, and e^{G_i} [R, Hk, r, 1].
        """
        ring = state.g.reshape(-1)
        g[batch.g_starts] += np.where(batch.g_carry, ring[batch.g_before], 0.0)
        for first, stop in batch.g_runs:
            np.add.accumulate(g[first:stop], axis=0, out=g[first:stop])
        ring[batch.g_write] = g
        others, decay = self._g_chunk[: batch.rows], self._decay_rows[: batch.rows]
        np.take(ring, batch.g_read, out=others, mode="clip")
        np.subtract(g[:, :, None], others, out=decay, casting="same_kind")
        np.copyto(decay, _MINUS_INF, where=batch.hidden)
        np.exp(decay, out=decay)
        gain = np.exp(g.astype(np.float32))
        return decay, gain.reshape(batch.rows, self.hk, self.ratio, 1)

    def _chunk_rows(
        self, state: DeltaNetState, batch: Batch, kq: F32, v: F32, beta: F32, decay: F32, gain: F32
    ) -> None:
        """Corrections u into the ring, and for each row both sums over the rows before it into ``_sums``."""
        rows = batch.rows
        decay = decay.reshape(rows, self.hk, self.ratio, 1, CHUNK)
        for part in batch.chunks:
            self._near_and_far(state, part, state.s[part.slot], kq)
        everything = slice(0, rows)
        self._combine(everything, v, decay, gain)
        for part in batch.chunks:
            self._substitute(state, part, beta)
        for part in batch.provisional:
            k, u, g = state.chunk(part.slot, part.chunk - CHUNK)
            fold(state.s[part.slot], k, u, g, out=self._state)
            self._near_and_far(state, part, self._state, kq)
            self._combine(slice(part.row, part.row + part.count), v, decay, gain)
            self._substitute(state, part, beta)

    def _near_and_far(self, state: DeltaNetState, part: ChunkRows, s: F32, kq: F32) -> None:
        """Products of the part's keys and queries with its chunk's keys and with S."""
        rows = slice(part.row, part.row + part.count)
        mine = kq[rows]
        k = state.chunk(part.slot, part.chunk)[0]
        k[:, part.first : part.first + part.count] = mine[:, :, 0].transpose(1, 0, 2)
        np.matmul(mine, k.transpose(0, 2, 1), out=self._near[rows])
        np.matmul(mine[:, :, None], s, out=self._far[rows])

    def _combine(self, rows: slice, v: F32, decay: F32, gain: F32) -> None:
        """Weights of the in-chunk sums, and v − e^G Sᵀk."""
        np.multiply(self._near[rows][:, :, None], decay[rows], out=self._weights[rows])
        x = self._x[rows]
        np.multiply(self._far[rows][:, :, :, 0], gain[rows], out=x)
        np.subtract(v[rows], x, out=x)

    def _substitute(self, state: DeltaNetState, part: ChunkRows, beta: F32) -> None:
        """Row after row: its sums over the corrections so far, then its own correction."""
        u = state.chunk(part.slot, part.chunk)[1]
        place = part.first
        for row in range(part.row, part.row + part.count):
            sums = self._sums[row]
            np.matmul(self._weights[row], u, out=sums)
            mine = u[:, :, place]
            np.subtract(self._x[row], sums[:, :, 0], out=mine)
            np.multiply(mine, beta[row], out=mine)
            place += 1

    def _output(self, batch: Batch, beta: F32, gain: F32) -> F32:
        """o of all rows [R, Hk, r, Dv], in ``_mixed``."""
        rows = batch.rows
        sums = self._sums[:rows]
        u = self._x[:rows]
        np.subtract(u, sums[:, :, :, 0], out=u)
        np.multiply(u, beta, out=u)
        np.multiply(u, self._weights[batch.arange, :, :, 1, batch.place][..., None], out=u)
        mixed = self._mixed[:rows].reshape(rows, self.hk, self.ratio, self.dv)
        np.multiply(self._far[:rows, :, :, 1], gain, out=mixed)
        np.add(mixed, sums[:, :, :, 1], out=mixed)
        return np.add(mixed, u, out=mixed)
