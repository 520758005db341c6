"""The text model's weights in the form that the exact operators read: fused, transposed, in panels.

The scale of a norm goes into the matrix that reads its result, so that norms are divisions only.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs
import numpy as np
import numpy.typing as npt

from luce.compute.matrix import PackedMatrix, PanelArena, packed_floats
from luce.compute.ops import rms_scale
from luce.compute.tiles import Heights
from luce.engines.qwen35.config import TextConfig
from luce.engines.qwen35.weights import (
    DeltaNetWeights,
    FfnWeights,
    FullAttentionWeights,
    LayerWeights,
    MoeWeights,
    Qwen35Weights,
)

__all__ = [
    "PackedAttention",
    "PackedDeltaNet",
    "PackedFfn",
    "PackedLayer",
    "PackedMoe",
    "PackedText",
    "pack_text",
]

F32 = npt.NDArray[np.float32]


@attrs.frozen(eq=False)
class PackedDeltaNet:
    inputs: PackedMatrix
    """qkv | z | b | a: one product for everything that reads the layer's input."""
    parts: tuple[slice, slice, slice, slice]
    """Output columns of qkv, z, b and a."""
    taps: F32
    """[4, 1, conv channels], last tap = current token."""
    neg_exp_a: F32
    dt_bias: F32
    out: PackedMatrix
    """Takes the gated norm's scale in."""


@attrs.frozen(eq=False)
class PackedAttention:
    inputs: PackedMatrix
    """q and gate interleaved per head | k | v."""
    parts: tuple[slice, slice, slice]
    qk_norm: F32
    """[H + Hkv, D]: what is left of the q norm, times D^-0.5, for the query heads, then of the k norm."""
    out: PackedMatrix


@attrs.frozen(eq=False)
class PackedFfn:
    gate_up: PackedMatrix
    down: PackedMatrix

    @property
    def matrices(self) -> Iterator[PackedMatrix]:
        yield from (self.gate_up, self.down)


@attrs.frozen(eq=False)
class PackedMoe:
    inputs: PackedMatrix
    """gate | up of the shared expert | router | gate of the shared expert: one product for what every row needs."""
    parts: tuple[slice, slice, slice]
    """Output columns of gate and up together, of the router and of the shared expert's gate."""
    shared_down: PackedMatrix
    experts: tuple[PackedFfn, ...]

    @property
    def matrices(self) -> Iterator[PackedMatrix]:
        yield from (self.inputs, self.shared_down)
        for expert in self.experts:
            yield from expert.matrices


@attrs.frozen(eq=False)
class PackedLayer:
    mixer: PackedDeltaNet | PackedAttention
    ffn: PackedFfn | PackedMoe


@attrs.frozen(eq=False)
class PackedText:
    embed: F32
    layers: tuple[PackedLayer, ...]
    head: PackedMatrix

    @property
    def matrices(self) -> Iterator[PackedMatrix]:
        for layer in self.layers:
            yield from (layer.mixer.inputs, layer.mixer.out)
            yield from layer.ffn.matrices
        yield self.head

    @property
    def tiles(self) -> dict[tuple[int, int], Heights]:
        """Tile heights that were found exact, by panel shape (in, columns); (1,) is row by row."""
        return {(matrix.depth, matrix.panel): matrix.heights for matrix in self.matrices}


def _pack_mixer(
    w: DeltaNetWeights | FullAttentionWeights, input_norm: F32, config: TextConfig, arena: PanelArena
) -> PackedDeltaNet | PackedAttention:
    scale = rms_scale(input_norm)
    if isinstance(w, DeltaNetWeights):
        inputs = PackedMatrix(w.qkv, w.z, w.b, w.a, arena=arena, scale=scale)
        qkv, z, b, a = inputs.columns([len(w.qkv), len(w.z), len(w.b), len(w.a)])
        return PackedDeltaNet(
            inputs,
            (qkv, z, b, a),
            np.ascontiguousarray(w.conv.T[:, None]),
            w.neg_exp_a,
            w.dt_bias,
            PackedMatrix(w.out, arena=arena, scale=np.tile(rms_scale(w.gdn_norm), config.value_heads)),
        )
    inputs = PackedMatrix(w.q, w.k, w.v, arena=arena, scale=scale)
    q, k, v = inputs.columns([len(w.q), len(w.k), len(w.v)])
    # sqrt(D) of the norm and D^-0.5 of the scores cancel for the queries.
    norm = np.concatenate(
        [
            np.broadcast_to(w.q_norm, (config.heads, config.head_dim)),
            np.broadcast_to(rms_scale(w.k_norm), (config.kv_heads, config.head_dim)),
        ]
    )
    return PackedAttention(inputs, (q, k, v), norm, PackedMatrix(w.o, arena=arena))


def _pack_ffn(w: FfnWeights | MoeWeights, post_norm: F32, arena: PanelArena) -> PackedFfn | PackedMoe:
    scale = rms_scale(post_norm)
    if isinstance(w, FfnWeights):
        return PackedFfn(
            PackedMatrix(w.gate, w.up, arena=arena, scale=scale), PackedMatrix(w.down, arena=arena)
        )
    shared = w.shared
    inputs = PackedMatrix(shared.gate, shared.up, w.router, w.shared_gate, arena=arena, scale=scale)
    gate_up, router, gate = inputs.columns([2 * len(shared.gate), len(w.router), 1])
    return PackedMoe(
        inputs,
        (gate_up, router, gate),
        PackedMatrix(shared.down, arena=arena),
        tuple(
            PackedFfn(PackedMatrix(gate_up, arena=arena, scale=scale), PackedMatrix(down, arena=arena))
            for gate_up, down in zip(w.gate_up, w.down, strict=True)
        ),
    )


def _pack_layer(w: LayerWeights, config: TextConfig, arena: PanelArena) -> PackedLayer:
    return PackedLayer(
        _pack_mixer(w.mixer, w.input_norm, config, arena),
        _pack_ffn(w.ffn, w.post_norm, arena),
    )


def _panel_floats(weights: Qwen35Weights) -> int:
    total = packed_floats(*weights.head.shape)
    for layer in weights.layers:
        w = layer.mixer
        first = [w.qkv, w.z, w.b, w.a] if isinstance(w, DeltaNetWeights) else [w.q, w.k, w.v]
        last = w.out if isinstance(w, DeltaNetWeights) else w.o
        for parts in (first, [last], *_ffn_parts(layer.ffn)):
            total += packed_floats(sum(len(part) for part in parts), parts[0].shape[1])
    return total


def _ffn_parts(w: FfnWeights | MoeWeights) -> Iterator[list[F32]]:
    """Weights of the feed-forward's products, those of one product together."""
    if isinstance(w, FfnWeights):
        yield from ([w.gate, w.up], [w.down])
        return
    yield from ([w.shared.gate, w.shared.up, w.router, w.shared_gate], [w.shared.down])
    for expert in (*w.gate_up, *w.down):
        yield [expert]


def pack_text(weights: Qwen35Weights, config: TextConfig) -> PackedText:
    """Pack every matrix of the text model; each shape's row tiles are checked bit for bit on the way."""
    arena = PanelArena(_panel_floats(weights))
    return PackedText(
        weights.embed,
        tuple(_pack_layer(layer, config, arena) for layer in weights.layers),
        PackedMatrix(weights.head, arena=arena, scale=rms_scale(weights.final_norm)),
    )
