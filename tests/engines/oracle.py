"""Qwen3.5 in plain float64, token by token, written from the specification alone (spec qwen35 §4-12).

Independent of luce's operators on purpose: the recurrence instead of the chunk form, whole softmax instead of key
splits, no caches, no batching. Slow and short. With ``bf16`` for ``narrow`` the inputs of products, queries, keys,
values and probabilities are rounded as the kernels of a device round them, and nothing else is; ``only`` rounds at
some of these places.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence

import attrs
import numpy as np
import numpy.typing as npt

from luce.compute.bf16 import round_bf16, widen_bf16
from luce.engines.qwen35.config import Qwen35Config, TextConfig, VisionConfig
from luce.engines.qwen35.weights import (
    DeltaNetWeights,
    FfnWeights,
    FullAttentionWeights,
    MoeWeights,
    Qwen35Weights,
    VisionWeights,
)

F64 = npt.NDArray[np.float64]
Narrow = Callable[[str, F64], F64]
"""Rounds the values of one of PLACES."""
PLACES = {
    "delta_in": "input of a DeltaNet layer's products",
    "delta_qk": "queries and keys of a DeltaNet layer",
    "delta_out": "input of a DeltaNet layer's output product",
    "attention_in": "input of an attention layer's products",
    "qkv": "queries, keys and values of an attention layer",
    "p": "its probabilities",
    "attention_out": "input of an attention layer's output product",
    "ffn_in": "input of gate and up",
    "ffn_product": "input of down",
    "head": "input of the head",
}


def wide(a: npt.NDArray[np.float32]) -> F64:
    return a.astype(np.float64)


def sigmoid(x: F64) -> F64:
    return 1.0 / (1.0 + np.exp(-x))


def silu(x: F64) -> F64:
    return x * sigmoid(x)


def rms(x: F64, scale: npt.NDArray[np.float32], eps: float) -> F64:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * wide(scale)


def layer_norm(x: F64, w: npt.NDArray[np.float32], b: npt.NDArray[np.float32], eps: float) -> F64:
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred * centred).mean(-1, keepdims=True) + eps) * wide(w) + wide(b)


@attrs.frozen(eq=False)
class OracleResult:
    logits: F64
    """[T, V]."""
    hidden: list[F64]
    """Per layer [T, h], after the layer."""
    states: list[F64]
    """Per DeltaNet layer [Hv, Dk, Dv] after the last token."""


def exact(_place: str, x: F64) -> F64:
    return x


def bf16(_place: str, x: F64) -> F64:
    return widen_bf16(round_bf16(x.astype(np.float32))).astype(np.float64)


def f16(_place: str, x: F64) -> F64:
    return x.astype(np.float16).astype(np.float64)


def of_products(place: str, x: F64) -> F64:
    """A device with operands of f16: bf16 in attention and for DeltaNet's keys and queries, f16 elsewhere."""
    return bf16(place, x) if place in ("delta_qk", "qkv", "p") else f16(place, x)


def only(places: Collection[str], narrow: Narrow = bf16) -> Narrow:
    """``narrow`` at these of PLACES."""
    unknown = set(places) - set(PLACES)
    assert not unknown, unknown
    return lambda place, x: narrow(place, x) if place in places else x


def deltanet(u: F64, w: DeltaNetWeights, c: TextConfig, narrow: Narrow = exact) -> tuple[F64, F64]:
    """One gated DeltaNet mixer by the recurrence (spec §5)."""
    rows, u = len(u), narrow("delta_in", u)
    mixed = u @ wide(w.qkv).T
    z = (u @ wide(w.z).T).reshape(rows, c.value_heads, c.value_dim)
    beta = sigmoid(u @ wide(w.b).T)
    g = wide(w.neg_exp_a) * np.log1p(np.exp(u @ wide(w.a).T + wide(w.dt_bias)))
    before = np.concatenate([np.zeros((3, mixed.shape[1])), mixed])
    taps = wide(w.conv)
    y = silu(sum(before[i : i + rows] * taps[:, i] for i in range(4)))
    keys = c.key_heads * c.key_dim
    q = y[:, :keys].reshape(rows, c.key_heads, c.key_dim)
    k = y[:, keys : 2 * keys].reshape(rows, c.key_heads, c.key_dim)
    v = y[:, 2 * keys :].reshape(rows, c.value_heads, c.value_dim)
    q = q / np.sqrt((q * q).sum(-1, keepdims=True) + 1e-6) / math.sqrt(c.key_dim)
    k = k / np.sqrt((k * k).sum(-1, keepdims=True) + 1e-6)
    q, k = narrow("delta_qk", q), narrow("delta_qk", k)
    state = np.zeros((c.value_heads, c.key_dim, c.value_dim))
    out = np.zeros_like(v)
    ratio = c.value_heads // c.key_heads
    for t in range(rows):
        for h in range(c.value_heads):
            kt, qt = k[t, h // ratio], q[t, h // ratio]
            s = state[h] * math.exp(g[t, h])
            delta = beta[t, h] * (v[t, h] - s.T @ kt)
            state[h] = s + np.outer(kt, delta)
            out[t, h] = state[h].T @ qt
    out = out / np.sqrt((out * out).mean(-1, keepdims=True) + c.rms_eps) * wide(w.gdn_norm) * silu(z)
    return narrow("delta_out", out.reshape(rows, -1)) @ wide(w.out).T, state


def rotate(x: F64, positions: npt.NDArray[np.int32], c: TextConfig) -> F64:
    """Interleaved M-RoPE on the first ``rotary_dim`` dims of [T, heads, D] (spec §7)."""
    half = c.rotary_dim // 2
    axes = np.zeros(half, int)
    for j in range(half):
        if j % 3 == 1 and j < 3 * c.mrope_section[1]:
            axes[j] = 1
        elif j % 3 == 2 and j < 3 * c.mrope_section[2]:
            axes[j] = 2
    angle = positions[axes].T * c.rope_theta ** (-2.0 * np.arange(half) / c.rotary_dim)
    cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
    a, b = x[..., :half], x[..., half : c.rotary_dim]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin, x[..., c.rotary_dim :]], -1)


def attention(
    u: F64,
    w: FullAttentionWeights,
    c: TextConfig,
    positions: npt.NDArray[np.int32],
    narrow: Narrow = exact,
) -> F64:
    """One gated full-attention mixer (spec §6)."""
    rows, u = len(u), narrow("attention_in", u)
    qg = (u @ wide(w.q).T).reshape(rows, c.heads, 2 * c.head_dim)
    q, gate = qg[..., : c.head_dim], qg[..., c.head_dim :]
    k = (u @ wide(w.k).T).reshape(rows, c.kv_heads, c.head_dim)
    v = (u @ wide(w.v).T).reshape(rows, c.kv_heads, c.head_dim)
    q = rotate(rms(q, w.q_norm, c.rms_eps), positions, c)
    k = rotate(rms(k, w.k_norm, c.rms_eps), positions, c)
    q, k, v = narrow("qkv", q), narrow("qkv", k), narrow("qkv", v)
    out = np.zeros_like(q)
    for h in range(c.heads):
        kv = h // (c.heads // c.kv_heads)
        scores = q[:, h] @ k[:, kv].T / math.sqrt(c.head_dim)
        scores[np.triu_indices(rows, 1)] = -np.inf
        p = np.exp(scores - scores.max(-1, keepdims=True))
        out[:, h] = narrow("p", p) / p.sum(-1, keepdims=True) @ v[:, kv]
    return narrow("attention_out", (out * sigmoid(gate)).reshape(rows, -1)) @ wide(w.o).T


def swiglu(u: F64, w: FfnWeights, narrow: Narrow = exact) -> F64:
    """Dense feed-forward (spec §8)."""
    u = narrow("ffn_in", u)
    return narrow("ffn_product", silu(u @ wide(w.gate).T) * (u @ wide(w.up).T)) @ wide(w.down).T


def mixture(u: F64, w: MoeWeights, c: TextConfig, narrow: Narrow = exact) -> F64:
    """Mixture of experts, row by row (spec §8): softmax over all, the best ones, their weights made to sum to 1."""
    assert c.moe is not None
    logits = u @ wide(w.router).T
    p = np.exp(logits - logits.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    out = sigmoid(u @ wide(w.shared_gate).T) * swiglu(u, w.shared, narrow)
    for t in range(len(u)):
        best = sorted(range(c.moe.experts), key=lambda e: (-p[t, e], e))[: c.moe.used]
        for e in best:
            expert = FfnWeights(w.gate_up[e, : c.moe.ffn], w.gate_up[e, c.moe.ffn :], w.down[e])
            out[t] += p[t, e] / sum(p[t, one] for one in best) * swiglu(u[t], expert, narrow)
    return out


def run_text(
    config: TextConfig,
    weights: Qwen35Weights,
    embeddings: F64,
    positions: npt.NDArray[np.int32],
    narrow: Narrow = exact,
) -> OracleResult:
    """The text model over input rows [T, h] with M-RoPE positions [3, T]."""
    x = embeddings
    hidden, states = [], []
    for layer in weights.layers:
        u = rms(x, layer.input_norm, config.rms_eps)
        if isinstance(layer.mixer, DeltaNetWeights):
            mixed, state = deltanet(u, layer.mixer, config, narrow)
            states.append(state)
        else:
            mixed = attention(u, layer.mixer, config, positions, narrow)
        x = x + mixed
        u = rms(x, layer.post_norm, config.rms_eps)
        if isinstance(layer.ffn, FfnWeights):
            x = x + swiglu(u, layer.ffn, narrow)
        else:
            x = x + mixture(u, layer.ffn, config, narrow)
        hidden.append(x)
    logits = narrow("head", rms(x, weights.final_norm, config.rms_eps)) @ wide(weights.head).T
    return OracleResult(logits, hidden, states)


def embed(
    weights: Qwen35Weights, ids: Sequence[int], spans: Sequence[tuple[int, npt.NDArray[np.float32]]] = ()
) -> F64:
    """Embedding rows [T, h], image rows replacing those from each (start, rows)."""
    rows = wide(weights.embed[np.asarray(ids)])
    for start, image in spans:
        rows[start : start + len(image)] = image
    return rows


def mrope_positions(
    ids: Sequence[int], image_id: int, grids: Sequence[tuple[int, int]], merge: int = 2
) -> tuple[npt.NDArray[np.int32], int]:
    """Positions [3, T] and rope delta (spec §10)."""
    out: list[tuple[int, int, int]] = []
    cursor, at, left = 0, 0, list(grids)
    while at < len(ids):
        if ids[at] != image_id:
            out.append((cursor, cursor, cursor))
            cursor, at = cursor + 1, at + 1
            continue
        gh, gw = left.pop(0)
        for r in range(gh // merge):
            out += [(cursor, cursor + r, cursor + col) for col in range(gw // merge)]
        at += gh * gw // merge**2
        cursor += max(gh, gw) // merge
    table = np.array(out, np.int32).T
    return table, int(table.max()) + 1 - len(ids)


def vision_order(grid: tuple[int, int], merge: int) -> npt.NDArray[np.int64]:
    """(row, column) [N, 2] of each patch row, in merge-block order."""
    gh, gw = grid
    return np.array(
        [
            (br * merge + r, bc * merge + c)
            for br in range(gh // merge)
            for bc in range(gw // merge)
            for r in range(merge)
            for c in range(merge)
        ]
    )


def run_vision(
    config: VisionConfig, w: VisionWeights, patches: npt.NDArray[np.float32], grid: tuple[int, int]
) -> F64:
    """Merged rows [N / merge², out] of one picture (spec §12)."""
    gh, gw = grid
    order = vision_order(grid, config.merge_size)
    x = wide(patches) @ wide(w.patch).T + wide(w.patch_bias)
    table = wide(w.positions).reshape(config.grid_side, config.grid_side, -1)
    for n, (r, c) in enumerate(order):
        sr = r * (config.grid_side - 1) / (gh - 1) if gh > 1 else 0.0
        sc = c * (config.grid_side - 1) / (gw - 1) if gw > 1 else 0.0
        r0, c0 = int(sr), int(sc)
        r1, c1 = min(r0 + 1, config.grid_side - 1), min(c0 + 1, config.grid_side - 1)
        fr, fc = sr - r0, sc - c0
        x[n] += (1 - fr) * (1 - fc) * table[r0, c0] + (1 - fr) * fc * table[r0, c1]
        x[n] += fr * (1 - fc) * table[r1, c0] + fr * fc * table[r1, c1]
    dim = config.hidden // config.heads
    freqs = 10000.0 ** (-2.0 * np.arange(dim // 4) / (dim / 2))
    angle = np.concatenate([order[:, :1] * freqs, order[:, 1:] * freqs], -1)
    cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]

    def turn(a: F64) -> F64:
        low, high = a[..., : dim // 2], a[..., dim // 2 :]
        return np.concatenate([low * cos - high * sin, high * cos + low * sin], -1)

    for block in w.blocks:
        u = layer_norm(x, block.norm1, block.norm1_bias, config.layer_norm_eps)
        qkv = (u @ wide(block.qkv).T + wide(block.qkv_bias)).reshape(len(x), 3, config.heads, dim)
        q, k, v = turn(qkv[:, 0]), turn(qkv[:, 1]), qkv[:, 2]
        scores = np.einsum("nhd,mhd->hnm", q, k) / math.sqrt(dim)
        p = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = np.einsum("hnm,mhd->nhd", p / p.sum(-1, keepdims=True), v).reshape(len(x), -1)
        x = x + mixed @ wide(block.proj).T + wide(block.proj_bias)
        u = layer_norm(x, block.norm2, block.norm2_bias, config.layer_norm_eps)
        u = u @ wide(block.fc1).T + wide(block.fc1_bias)
        u = 0.5 * u * (1 + np.tanh(math.sqrt(2 / math.pi) * (u + 0.044715 * u**3)))
        x = x + u @ wide(block.fc2).T + wide(block.fc2_bias)
    x = layer_norm(x, w.merger_norm, w.merger_norm_bias, config.layer_norm_eps)
    x = x.reshape(len(x) // config.merge_size**2, -1) @ wide(w.merger_fc1).T + wide(w.merger_fc1_bias)
    x = 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))
    return x @ wide(w.merger_fc2).T + wide(w.merger_fc2_bias)


def run_request(
    config: Qwen35Config,
    weights: Qwen35Weights,
    ids: Sequence[int],
    grids: Sequence[tuple[int, int]] = (),
    spans: Sequence[tuple[int, npt.NDArray[np.float32]]] = (),
    narrow: Narrow = exact,
) -> OracleResult:
    """A whole prompt at once, image rows given."""
    image_id = -1 if config.image_token_id is None else config.image_token_id
    positions, _ = mrope_positions(ids, image_id, grids)
    return run_text(config.text, weights, embed(weights, ids, spans), positions, narrow)
