"""Layers of the compact training model.

Token-wise work is done on flat (tokens, features) arrays, and every batch has the same number of tokens, so each of
the functions marked `compiled` is compiled once whatever the batch's row length.  Parameter names are those of the
released checkpoints.
"""

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as fn

from tools.demo_model import config as c
from tools.demo_model.gdn import CHUNK, UnitLowerInverse, chunk_matrix, chunk_output, chunk_parts, scan

Function = TypeVar("Function", bound=Callable[..., object])
_compiling = False


def set_compiling(on: bool) -> None:
    global _compiling
    _compiling = on


def compiled(function: Function) -> Function:
    """Compile on the first call when compiling is on."""
    made = torch.compile(function, dynamic=False)

    def call(*args: object) -> object:
        return (made if _compiling else function)(*args)

    return call


def linear(inputs: int, outputs: int, bias: bool = False, scale: float = 1.0) -> nn.Linear:
    layer = nn.Linear(inputs, outputs, bias=bias)
    nn.init.normal_(layer.weight, std=scale * 0.7 / inputs**0.5)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


RESIDUAL = (2 * c.LAYERS) ** -0.5


class RMSNorm(nn.Module):
    """Zero-centred weight: x / rms(x) * (1 + w)."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size))

    def forward(self, x: Tensor) -> Tensor:
        x32 = x.float()
        x32 = x32 * torch.rsqrt(x32.square().mean(-1, keepdim=True) + c.EPS)
        return (x32 * (1 + self.weight)).to(x.dtype)


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate_proj = linear(c.HIDDEN, c.FFN)
        self.up_proj = linear(c.HIDDEN, c.FFN)
        self.down_proj = linear(c.FFN, c.HIDDEN, scale=RESIDUAL)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(fn.silu(self.gate_proj(x)) * self.up_proj(x))


class GatedNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(c.GDN_DIM))

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + c.EPS) * self.weight
        return x * fn.silu(gate.float())


class LinearAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        keys, values = c.GDN_KEY_HEADS * c.GDN_DIM, c.GDN_VALUE_HEADS * c.GDN_DIM
        self.in_proj_qkv = linear(c.HIDDEN, 2 * keys + values)
        self.in_proj_z = linear(c.HIDDEN, values)
        self.in_proj_b = linear(c.HIDDEN, c.GDN_VALUE_HEADS)
        self.in_proj_a = linear(c.HIDDEN, c.GDN_VALUE_HEADS)
        self.conv1d = nn.Conv1d(
            2 * keys + values, 2 * keys + values, c.CONV, groups=2 * keys + values, bias=False
        )
        dt = torch.exp(torch.empty(c.GDN_VALUE_HEADS).uniform_(-6.9, -2.3))
        self.dt_bias = nn.Parameter(dt + torch.log(-torch.expm1(-dt)))
        self.A_log = nn.Parameter(torch.empty(c.GDN_VALUE_HEADS).uniform_(0.5, 8).log())
        self.norm = GatedNorm()
        self.out_proj = linear(values, c.HIDDEN, scale=RESIDUAL)

    def project(self, u: Tensor, place: Tensor) -> tuple[Tensor, ...]:
        """q, k, v (N, Hv, C, D), beta and g (N, Hv, C) in float32 and z (tokens, Hv, D).

        `place` (tokens) is the index of a token in its row, which tells the convolution where rows start.
        """
        qkv, z = self.in_proj_qkv(u), self.in_proj_z(u)
        b, a = self.in_proj_b(u), self.in_proj_a(u)
        taps = self.conv1d.weight[:, 0]
        mixed = qkv * taps[:, -1]
        for back in range(1, c.CONV):
            shifted = fn.pad(qkv, (0, 0, back, 0))[: qkv.shape[0]]
            mixed = mixed + torch.where(place[:, None] >= back, shifted, 0) * taps[:, -1 - back]
        mixed = fn.silu(mixed.float())
        keys = c.GDN_KEY_HEADS * c.GDN_DIM
        repeat = c.GDN_VALUE_HEADS // c.GDN_KEY_HEADS

        def heads(x: Tensor) -> Tensor:
            return x.view(-1, CHUNK, x.shape[-1] // c.GDN_DIM, c.GDN_DIM).transpose(1, 2)

        def unit(x: Tensor) -> Tensor:
            x = x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)
            return x.repeat_interleave(repeat, dim=1)

        q = unit(heads(mixed[:, :keys])) * c.GDN_DIM**-0.5
        k = unit(heads(mixed[:, keys : 2 * keys]))
        v = heads(mixed[:, 2 * keys :])
        beta = torch.sigmoid(b.float())
        g = -self.A_log.exp() * fn.softplus(a.float() + self.dt_bias)
        per_chunk = (-1, CHUNK, c.GDN_VALUE_HEADS)
        beta, g = beta.view(per_chunk).transpose(1, 2), g.view(per_chunk).transpose(1, 2)
        return q, k, v.contiguous(), beta, g, z.view(-1, c.GDN_VALUE_HEADS, c.GDN_DIM)


class SelfAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q_proj = linear(c.HIDDEN, 2 * c.HEADS * c.HEAD_DIM)
        self.k_proj = linear(c.HIDDEN, c.KV_HEADS * c.HEAD_DIM)
        self.v_proj = linear(c.HIDDEN, c.KV_HEADS * c.HEAD_DIM)
        self.o_proj = linear(c.HEADS * c.HEAD_DIM, c.HIDDEN, scale=RESIDUAL)
        self.q_norm = RMSNorm(c.HEAD_DIM)
        self.k_norm = RMSNorm(c.HEAD_DIM)

    def project(self, u: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """q, gate (tokens, H, D) and k, v (tokens, Hkv, D); cos and sin are (tokens, rotary / 2)."""
        q, gate = self.q_proj(u).view(-1, c.HEADS, 2, c.HEAD_DIM).unbind(2)
        k = self.k_proj(u).view(-1, c.KV_HEADS, c.HEAD_DIM)
        v = self.v_proj(u).view(-1, c.KV_HEADS, c.HEAD_DIM)
        return rotate(self.q_norm(q), cos, sin), gate, rotate(self.k_norm(k), cos, sin), v


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Half-split rotation of the first 2 * cos.shape[-1] features; x (tokens, heads, D)."""
    half = cos.shape[-1]
    a, b = x[..., :half].float(), x[..., half : 2 * half].float()
    cos, sin = cos[:, None], sin[:, None]
    turned = torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)
    return torch.cat([turned, x[..., 2 * half :]], -1) if x.shape[-1] > 2 * half else turned


class DecoderLayer(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.input_layernorm = RMSNorm(c.HIDDEN)
        self.post_attention_layernorm = RMSNorm(c.HIDDEN)
        self.mlp = MLP()
        if kind == "linear_attention":
            self.linear_attn = LinearAttention()
        else:
            self.self_attn = SelfAttention()

    def forward(self, x: Tensor, rows: int, place: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """x (tokens, hidden), the tokens of `rows` rows of equal length one after the other."""
        return (
            linear_layer(self, x, rows, place)
            if self.kind == "linear_attention"
            else full_layer(self, x, rows, cos, sin)
        )


@compiled
def _linear_before(layer: DecoderLayer, x: Tensor, place: Tensor) -> tuple[Tensor, ...]:
    q, k, v, beta, g, z = layer.linear_attn.project(layer.input_layernorm(x), place)
    with torch.autocast(x.device.type, enabled=False):
        a, decay, total = chunk_matrix(k, beta, g)
    return q, k, v, beta, z, a, decay, total


@compiled
def _linear_parts(*parts: Tensor) -> tuple[Tensor, ...]:
    with torch.autocast(parts[0].device.type, enabled=False):
        return chunk_parts(*parts)


@compiled
def _linear_after(
    layer: DecoderLayer,
    x: Tensor,
    z: Tensor,
    q: Tensor,
    u: Tensor,
    w: Tensor,
    inside: Tensor,
    total: Tensor,
    state: Tensor,
) -> Tensor:
    with torch.autocast(x.device.type, enabled=False):
        out = chunk_output(q, u, w, inside, total, state)
    out = out.transpose(1, 2).reshape(-1, c.GDN_VALUE_HEADS, c.GDN_DIM)
    gated = layer.linear_attn.norm(out, z).flatten(1).to(z.dtype)
    x = x + layer.linear_attn.out_proj(gated)
    return x + layer.mlp(layer.post_attention_layernorm(x))


def linear_layer(layer: DecoderLayer, x: Tensor, rows: int, place: Tensor) -> Tensor:
    q, k, v, beta, z, a, decay, total = _linear_before(layer, x, place)
    with torch.autocast(x.device.type, enabled=False):
        inverse = UnitLowerInverse.apply(a)
        u, w, inside, p, r = _linear_parts(q, k, v, beta, total, decay, inverse)
        by_row = (rows, p.shape[0] // rows, *p.shape[1:])
        state = scan(p.view(by_row), r.view(by_row)).reshape(p.shape)
    return _linear_after(layer, x, z, q, u, w, inside, total, state)


@compiled
def _full_before(layer: DecoderLayer, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, ...]:
    return layer.self_attn.project(layer.input_layernorm(x), cos, sin)


@compiled
def _full_after(layer: DecoderLayer, x: Tensor, out: Tensor, gate: Tensor) -> Tensor:
    x = x + layer.self_attn.o_proj((out * torch.sigmoid(gate)).flatten(1))
    return x + layer.mlp(layer.post_attention_layernorm(x))


def full_layer(layer: DecoderLayer, x: Tensor, rows: int, cos: Tensor, sin: Tensor) -> Tensor:
    q, gate, k, v = _full_before(layer, x, cos, sin)

    def split(t: Tensor) -> Tensor:
        return t.view(rows, -1, t.shape[1], c.HEAD_DIM).transpose(1, 2)

    k = k.expand(-1, c.HEADS, -1)
    v = v.expand(-1, c.HEADS, -1)
    out = fn.scaled_dot_product_attention(split(q), split(k), split(v), is_causal=True)
    return _full_after(layer, x, out.transpose(1, 2).reshape(q.shape), gate)
