"""Sequences for the DeltaNet kernels: inputs, a float64 recurrence, and passes over slots as an engine makes them."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np
import numpy.typing as npt

from luce.compute.activations import num_values, padded_rows, unpack
from luce.compute.bf16 import round_bf16, widen_bf16
from luce.compute.device import Array, Device
from luce.engines.qwen35.config import TextConfig
from luce.engines.qwen35.device.deltanet import (
    DeltaNetConstants,
    DeltaNetLauncher,
    MixerRows,
    scratch_arrays,
    state_shapes,
)
from luce.engines.qwen35.device.descriptors import (
    CHUNK_ROWS,
    CONV_ROWS,
    LANE,
    PASS,
    RING_ROWS,
    ROW,
    DescriptorLayout,
    Descriptors,
)
from luce.engines.qwen35.weights import DeltaNetWeights

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]

PREFILL_TILE = 64


def shape(hk: int, hv: int, dk: int, dv: int) -> TextConfig:
    return TextConfig(
        vocab_size=8, hidden=64, num_layers=1, ffn=8, heads=1, kv_heads=1, head_dim=32, key_heads=hk, value_heads=hv,
        key_dim=dk, value_dim=dv, conv_kernel=4, full_attention=(False,), rms_eps=1e-6, rope_theta=1e4, rotary_dim=8,
        mrope_section=(2, 1, 1), max_positions=1024, tied=True,
    )  # fmt: skip


def small_weights(config: TextConfig, seed: int = 0) -> DeltaNetWeights:
    """Without matrices; decays from nearly none to some ten a row."""
    rng = np.random.default_rng(seed)
    hv = config.value_heads
    nothing = np.zeros((0, 0), np.float32)
    return DeltaNetWeights(
        qkv=nothing, z=nothing, b=nothing, a=nothing, out=nothing,
        conv=rng.standard_normal((config.conv_channels, 4)).astype(np.float32),
        neg_exp_a=(-np.exp(rng.uniform(-4, 2, hv))).astype(np.float32),
        dt_bias=rng.standard_normal(hv).astype(np.float32),
        gdn_norm=rng.uniform(0.5, 2, config.value_dim).astype(np.float32),
    )  # fmt: skip


def inputs(config: TextConfig, rows: int, seed: int) -> F32:
    """Rows [rows, q | k | v | z | b | a | padding]. Keys resemble each other, so that corrections matter."""
    rng = np.random.default_rng(seed)
    width = config.conv_channels + config.value_heads * (config.value_dim + 2)
    x = rng.standard_normal((rows, -(-width // 16) * 16))
    keys = slice(0, 2 * config.key_heads * config.key_dim)
    x[:, keys] += np.random.default_rng(99).standard_normal(x[:, keys].shape[1])
    return x.astype(np.float32)


def recurrence(config: TextConfig, w: DeltaNetWeights, x: F32) -> F64:
    """Outputs [T, Hv · Dv] of a sequence in float64, keys and queries rounded to bf16 as the kernels define them."""
    hk, hv, dk, dv = config.key_heads, config.value_heads, config.key_dim, config.value_dim
    channels, t = config.conv_channels, len(x)
    wide = x.astype(np.float64)
    m = np.concatenate([np.zeros((3, channels)), wide[:, :channels]])
    y = sum(m[i : i + t] * w.conv[:, i].astype(np.float64) for i in range(4))
    y = y / (1 + np.exp(-y))

    def unit(part: F64, scale: float) -> F64:
        heads = part.reshape(t, hk, dk)
        heads = heads / np.sqrt((heads**2).sum(-1, keepdims=True) + 1e-6) * scale
        return widen_bf16(round_bf16(heads.astype(np.float32))).astype(np.float64)

    q = unit(y[:, : hk * dk], dk**-0.5)
    k = unit(y[:, hk * dk : 2 * hk * dk], 1.0)
    v = y[:, 2 * hk * dk :].reshape(t, hv, dv)
    z, b, a = np.split(wide[:, channels : channels + hv * (dv + 2)], [hv * dv, hv * dv + hv], axis=1)
    beta = 1 / (1 + np.exp(-b))
    decay = np.exp(w.neg_exp_a.astype(np.float64) * np.logaddexp(0, a + w.dt_bias.astype(np.float64)))
    out = np.empty((t, hv, dv))
    for h in range(hv):
        state = np.zeros((dk, dv))
        for i in range(t):
            key = k[i, h // (hv // hk)]
            state *= decay[i, h]
            state += np.outer(key, beta[i, h] * (v[i, h] - key @ state))
            out[i, h] = q[i, h // (hv // hk)] @ state
    out /= np.sqrt((out**2).mean(-1, keepdims=True) + config.rms_eps)
    out *= w.gdn_norm.astype(np.float64)
    return (out.reshape(t, -1) * (z / (1 + np.exp(-z)))).reshape(t, -1)


@attrs.frozen
class Piece:
    """Rows of a slot in a pass."""

    slot: int
    start: int
    rows: F32

    @property
    def end(self) -> int:
        return self.start + len(self.rows)


class Mixer:
    """One layer over some slots. All memory holds NaN until it is written."""

    def __init__(
        self,
        device: Device,
        config: TextConfig,
        slots: int,
        *,
        rows: int,
        lanes: int = 3,
        weights: DeltaNetWeights,
    ) -> None:
        self.device, self.config = device, config
        scratch = {
            spec.name: device.empty(spec.shape, spec.dtype) for spec in scratch_arrays(config, rows, lanes)
        }
        for array in scratch.values():
            device.fill(array, 0xFF)
        self.launcher = DeltaNetLauncher(device, config, scratch)
        self.constants = DeltaNetConstants.upload(device, weights)
        self.state: dict[str, Array] = {}
        for name, (shape_, dtype) in state_shapes(config).items():
            self.state[name] = device.empty((slots, *shape_), dtype)
            device.fill(self.state[name], 0xFF)
        self.base = [0] * slots
        self._layout = DescriptorLayout(rows=max(rows, 64), lanes=64, samples=1, tiles=1, lists=1)

    def run(self, pieces: Sequence[Piece], *, step: bool, spare: F32 | None = None) -> list[F32]:
        """Outputs of each piece, one pass. ``spare``: rows behind the last (padding of a bucket)."""
        c = self.config
        total = sum(len(piece.rows) for piece in pieces)
        x = np.concatenate([*(piece.rows for piece in pieces), *([] if spare is None else [spare])])
        height = padded_rows(len(x), 0 if step else PREFILL_TILE)
        parts = self._describe(pieces, total)
        tile = 0 if step else PREFILL_TILE
        depth = c.value_heads * c.value_dim
        out = self.device.empty(num_values(len(x), depth, tile), np.uint16)
        self.device.fill(out, 0xFF)
        on_device = self.device.array(x)
        gates = on_device.reshape(-1)[c.conv_channels + depth :]
        at = MixerRows(on_device, x.shape[1], gates, x.shape[1], out, height, tile)
        if step:
            self.launcher.step(parts, len(x), at, self.constants, self.state)
        else:
            self.launcher.chunk(parts, total, len(pieces), at, self.constants, self.state)
        values, high, low = (
            part[:total]
            for part in unpack(self.device.numpy(out), len(x), depth, tile, operands=self.device.operands)
        )
        sums = np.zeros((total, high.shape[1], 32), np.float32)
        sums.reshape(total, -1)[:, :depth] = values
        finite = np.isfinite(values).all(-1)
        assert np.allclose(sums.sum(-1)[finite], (high + low)[finite], atol=1e-2)
        found, row = [], 0
        for piece in pieces:
            found.append(values[row : row + len(piece.rows)])
            row += len(piece.rows)
        return found

    def fold(self, slot: int, position: int) -> None:
        """Commit rows before ``position`` without any new one."""
        piece = Piece(slot, position, np.zeros((0, 1), np.float32))
        self.launcher.fold(self._describe([piece], 0), self.constants, self.state)

    def kept(self, slot: int, position: int) -> dict[str, npt.NDArray[np.generic]]:
        """What a slot holds that was committed at ``position``: S, ring rows of its chunk, window of 3 rows."""
        base = position // CHUNK_ROWS * CHUNK_ROWS
        assert self.base[slot] == base
        rows = np.arange(base, position) % RING_ROWS
        found = {name: self.device.numpy(array)[slot] for name, array in self.state.items()}
        if base == 0:
            found["s"] = np.zeros_like(found["s"])
        window = np.arange(max(position - 3, 0), position) % CONV_ROWS
        return {
            "s": found["s"], "k": found["k"][:, rows], "u": found["u"][:, rows], "g": found["g"][:, rows],
            "conv": found["conv"][window],
        }  # fmt: skip

    def _describe(self, pieces: Sequence[Piece], total: int) -> dict[str, Array]:
        host = Descriptors(self._layout, np.full(self._layout.nbytes, 0xFF, np.uint8))
        host.header[0] = (total, len(pieces), 0, 0)
        row = 0
        for lane, piece in enumerate(pieces):
            count = len(piece.rows)
            last = piece.start if count <= CHUNK_ROWS else max(piece.start, piece.end - 1)
            after = last // CHUNK_ROWS * CHUNK_ROWS
            host.lanes[lane] = (piece.slot, piece.start, count, row, self.base[piece.slot], after, 0, 0)
            for i in range(count):
                host.rows[row + i] = (piece.slot, piece.start + i, 0, lane, 0, 0, 0, 0)
            self.base[piece.slot] = after
            row += count
        buffer = self.device.array(host.buffer)
        sizes = {
            "header": PASS.itemsize,
            "rows": ROW.itemsize * self._layout.rows,
            "lanes": LANE.itemsize * 64,
        }
        return {
            name: buffer[self._layout.offsets[name] : self._layout.offsets[name] + size]
            for name, size in sizes.items()
        }
