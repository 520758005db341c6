"""A layer's attention on a device, driven pass by pass: sequences of random rows, block tables at will, planted NaN."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs
import numpy as np

from luce.compute.activations import num_values, padded_rows, unpack
from luce.compute.bf16 import round_bf16, widen_bf16
from luce.compute.device import Device
from luce.engines.qwen35.config import TextConfig
from luce.engines.qwen35.device.attention import AttentionKernels, KvArrays, PassArrays, rope_table
from luce.engines.qwen35.device.descriptors import BLOCK_ROWS, LANE, PASS, ROW, TILE
from luce.engines.qwen35.rope import mrope_axes, rotations

POSITIONS = 2048
NAN = 0x7FFF


def shape(heads: int, kv_heads: int, dim: int) -> TextConfig:
    rotary = dim // 4
    sections = {4: (2, 1, 1), 8: (3, 3, 2), 16: (6, 5, 5), 32: (11, 11, 10)}[rotary // 2]
    return TextConfig(
        vocab_size=16, hidden=64, num_layers=1, ffn=64, heads=heads, kv_heads=kv_heads, head_dim=dim, key_heads=1,
        value_heads=1, key_dim=32, value_dim=32, conv_kernel=4, full_attention=(True,), rms_eps=1e-6,
        rope_theta=1e4, rotary_dim=rotary, mrope_section=sections, max_positions=POSITIONS, tied=True,
    )  # fmt: skip


@attrs.frozen(eq=False)
class Tokens:
    """Rows that enter attention, float32 [tokens, width], and their M-RoPE positions [3, tokens]."""

    x: np.ndarray
    places: np.ndarray


def sequence(config: TextConfig, tokens: int, seed: int) -> Tokens:
    rng = np.random.default_rng(seed)
    width = 2 * config.head_dim * (config.heads + config.kv_heads)
    x = rng.standard_normal((tokens, width)).astype(np.float32) * rng.uniform(0.5, 3, (tokens, 1)).astype(
        np.float32
    )
    places = np.arange(tokens) + np.array([[0], [0], [0]])
    if tokens > 20:  # a picture of 3 x 4 tokens at 7
        places[0, 7:19], places[1, 7:19], places[2, 7:19] = (
            7,
            7 + np.repeat(np.arange(3), 4),
            7 + np.tile(np.arange(4), 3),
        )
        places[:, 19:] = np.arange(tokens - 19) + 11
    return Tokens(x, places)


def reference(config: TextConfig, rows: Tokens, norms: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """Gated attention [tokens, H · D] in float64, of queries, keys and values rounded as they are stored."""
    tokens, dim = len(rows.x), config.head_dim
    heads, kv_heads, half = config.heads, config.kv_heads, config.rotary_dim // 2
    x = rows.x.astype(np.float64)
    pair = x[:, : 2 * heads * dim].reshape(tokens, heads, 2, dim)
    key, value = x[:, 2 * heads * dim :].reshape(tokens, 2, kv_heads, dim).transpose(1, 0, 2, 3)
    cos, sin = (table.astype(np.float64) for table in rotations(config, POSITIONS))
    where = rows.places[mrope_axes(config.mrope_section)].T, np.arange(half)
    c, s = cos[where][:, None], sin[where][:, None]

    def turned(v: np.ndarray, norm: np.ndarray) -> np.ndarray:
        v = v / np.sqrt((v**2).mean(-1, keepdims=True) + config.rms_eps) * norm
        a, b = v[..., :half].copy(), v[..., half : 2 * half].copy()
        v[..., :half], v[..., half : 2 * half] = a * c - b * s, b * c + a * s
        return stored(v)

    q, k, v = turned(pair[:, :, 0], norms[0]), turned(key, norms[1]), stored(value)
    out = np.empty((tokens, heads, dim))
    for head in range(heads):
        of = head // (heads // kv_heads)
        scores = q[:, head] @ k[:, of].T / np.sqrt(dim)
        scores[np.triu_indices(tokens, 1)] = -np.inf
        p = np.exp(scores - scores.max(-1, keepdims=True))
        out[:, head] = p @ v[:, of] / p.sum(-1, keepdims=True)
    gate = 1 / (1 + np.exp(-pair[:, :, 1]))
    return (out * gate).reshape(tokens, heads * dim)


def stored(v: np.ndarray) -> np.ndarray:
    return widen_bf16(round_bf16(v.astype(np.float32))).astype(np.float64)


@attrs.frozen
class Run:
    """Rows ``start`` … ``start + count`` - 1 of a sequence, in a pass."""

    of: int
    start: int
    count: int


class Layer:
    """One attention layer with pools of ``blocks`` blocks that start as NaN."""

    def __init__(
        self,
        device: Device,
        config: TextConfig,
        blocks: int,
        *,
        wgmma: bool | None = None,
        context: int = 1024,
    ) -> None:
        self.device, self.config = device, config
        self.kernels = AttentionKernels(device, config, wgmma=wgmma)
        rng = np.random.default_rng(11)
        self.norms = tuple(rng.uniform(0.5, 2, config.head_dim).astype(np.float32) for _ in range(2))
        self._norms = [device.array(norm) for norm in self.norms]
        self._rope = device.array(rope_table(config, POSITIONS))
        tile = (blocks, config.kv_heads, BLOCK_ROWS * config.head_dim)
        self.kv = KvArrays(*(device.array(np.full(tile, NAN, np.uint16)) for _ in range(2)))
        self.scratch = self.kernels.split_arrays(device, 64, context)

    def run(
        self,
        sequences: Mapping[int, Tokens],
        runs: Sequence[Run],
        tables: Mapping[int, Sequence[int]],
        *,
        step: bool = False,
        pad: int = 3,
        tile: int = 64,
        kv_rows: Mapping[int, int] | None = None,
    ) -> list[np.ndarray]:
        """One pass; bf16 values as float32 [count, H · D] of every run.

        Args:
            pad: rows behind the last that hold NaN, and lanes, rows and tiles behind the last that hold 0x7F7F7F7F.
            kv_rows: places of a sequence's first row that are told wrongly.
        """
        device, config = self.device, self.config
        total = sum(run.count for run in runs)
        height = padded_rows(total + pad, 0) if step else total + pad
        header = np.zeros(1, PASS)
        rows, lanes = filled(height, ROW), filled(len(runs) + pad, LANE)
        x = np.full((height, sequences[runs[0].of].x.shape[1] + 8), np.nan, np.float32)
        table: list[int] = [-7] * 3
        tiles, at = [], 0
        for i, run in enumerate(runs):
            source, blocks = sequences[run.of], tables[run.of]
            lanes[i] = (run.of, run.start, run.count, at, 0, 0, len(table), 0)
            table += blocks
            end = run.start + run.count
            x[at : at + run.count, :-8] = source.x[run.start : end]
            for k, position in enumerate(range(run.start, end)):
                kv = blocks[position // BLOCK_ROWS] * BLOCK_ROWS + position % BLOCK_ROWS
                if kv_rows and run.of in kv_rows and k == 0:
                    kv = kv_rows[run.of]
                rows[at + k] = (run.of, position, 5, i, *source.places[:, position], kv)
            size = self.kernels.query_tile
            tiles += [(i, first) for first in range(0, run.count, size)]
            at += run.count
        header[0] = (total, len(runs), 0, len(tiles))
        tile_array = filled(len(tiles) + pad, TILE)
        tile_array[: len(tiles)] = tiles
        parts = [device.array(part.view(np.uint8)) for part in (header, rows, lanes, tile_array)]
        batch = PassArrays(*parts, device.array(np.array([*table, -7], np.int32)))
        inputs = device.array(x)
        q = device.array(np.full((height, config.heads, config.head_dim), NAN, np.uint16))
        self.kernels.inputs(batch, height, inputs, *self._norms, self._rope, q, self.kv)
        kind = 0 if step else tile
        depth = config.heads * config.head_dim
        out_rows = padded_rows(height, kind)
        y = device.array(np.full(num_values(out_rows, depth, kind), NAN, np.uint16))
        if step:
            self.kernels.step(batch, height, inputs, q, self.kv, self.scratch, y, out_rows)
        else:
            self.kernels.chunks(batch, len(tiles) + pad, inputs, q, self.kv, y, out_rows, kind)
        values, _, _ = unpack(device.numpy(y), out_rows, depth, kind, operands=device.operands)
        assert np.isnan(values[total:]).all(), "rows past the count are left alone"
        at = np.cumsum([0, *(run.count for run in runs)])
        return [values[at[i] : at[i + 1]] for i in range(len(runs))]


def filled(count: int, record: np.dtype) -> np.ndarray:
    return np.frombuffer(b"\x7f" * (count * record.itemsize), record).copy()
