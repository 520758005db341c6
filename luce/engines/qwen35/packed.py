"""The text model's weights in the form that the exact operators read: fused, transposed, in panels."""

from __future__ import annotations

import attrs
import numpy as np
import numpy.typing as npt

from luce.compute.matrix import PackedMatrix
from luce.engines.qwen35.config import TextConfig
from luce.engines.qwen35.weights import DeltaNetWeights, FullAttentionWeights, LayerWeights, Qwen35Weights

__all__ = ["PackedAttention", "PackedDeltaNet", "PackedLayer", "PackedText", "pack_text"]

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
    gdn_norm: F32
    out: PackedMatrix


@attrs.frozen(eq=False)
class PackedAttention:
    inputs: PackedMatrix
    """q and gate interleaved per head | k | v."""
    parts: tuple[slice, slice, slice]
    qk_norm: F32
    """[H + Hkv, D]: the q scale times D^-0.5 for the query heads, then the k scale for the key heads."""
    out: PackedMatrix


@attrs.frozen(eq=False)
class PackedLayer:
    input_norm: F32
    mixer: PackedDeltaNet | PackedAttention
    post_norm: F32
    gate_up: PackedMatrix
    down: PackedMatrix


@attrs.frozen(eq=False)
class PackedText:
    embed: F32
    layers: tuple[PackedLayer, ...]
    final_norm: F32
    head: PackedMatrix

    @property
    def nbytes(self) -> int:
        """Bytes of the packed matrices and the embedding."""
        total = self.embed.nbytes + self.head.nbytes
        for layer in self.layers:
            total += layer.gate_up.nbytes + layer.down.nbytes
            total += layer.mixer.inputs.nbytes + layer.mixer.out.nbytes
        return total


def _pack_mixer(
    w: DeltaNetWeights | FullAttentionWeights, config: TextConfig
) -> PackedDeltaNet | PackedAttention:
    if isinstance(w, DeltaNetWeights):
        inputs = PackedMatrix(w.qkv, w.z, w.b, w.a)
        qkv, z, b, a = inputs.columns([len(w.qkv), len(w.z), len(w.b), len(w.a)])
        return PackedDeltaNet(
            inputs,
            (qkv, z, b, a),
            np.ascontiguousarray(w.conv.T[:, None]),
            w.neg_exp_a,
            w.dt_bias,
            w.gdn_norm,
            PackedMatrix(w.out),
        )
    inputs = PackedMatrix(w.q, w.k, w.v)
    q, k, v = inputs.columns([len(w.q), len(w.k), len(w.v)])
    scale = np.float32(config.head_dim**-0.5)
    norm = np.concatenate(
        [
            np.broadcast_to(w.q_norm * scale, (config.heads, config.head_dim)),
            np.broadcast_to(w.k_norm, (config.kv_heads, config.head_dim)),
        ]
    ).astype(np.float32)
    return PackedAttention(inputs, (q, k, v), norm, PackedMatrix(w.o))


def _pack_layer(w: LayerWeights, config: TextConfig) -> PackedLayer:
    return PackedLayer(
        w.input_norm,
        _pack_mixer(w.mixer, config),
        w.post_norm,
        PackedMatrix(w.gate, w.up),
        PackedMatrix(w.down),
    )


def pack_text(weights: Qwen35Weights, config: TextConfig) -> PackedText:
    """Pack every matrix of the text model; each shape's row tiles are checked bit for bit on the way."""
    return PackedText(
        weights.embed,
        tuple(_pack_layer(layer, config) for layer in weights.layers),
        weights.final_norm,
        PackedMatrix(weights.head),
    )
