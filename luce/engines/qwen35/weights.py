"""Weights of a Qwen3.5 model in memory, in one canonical form whatever file they came from.

All arrays are C-contiguous float32, matrices stored ``[out, in]``. Differences between the file forms are
gone:

- RMS norms hold the **scale** that multiplies, i.e. ``1 + w`` of a Hugging Face file and the stored value
  of a GGUF (which folds the 1 in); ``gdn_norm`` is plain in both.
- ``neg_exp_a`` is ``-exp(A_log)``; a GGUF stores it so.
- Value heads are in grouped (Hugging Face) order: value head ``h`` uses key head ``h // r``.
- Experts stand in one array, gate rows before up rows, whether a file fuses them or not.
- ``patch`` is the sum of the two temporal slices of the patch embedding (both see the same frame of a still
  image).
"""

from __future__ import annotations

import attrs
import numpy as np
import numpy.typing as npt

__all__ = [
    "DeltaNetWeights",
    "FfnWeights",
    "FullAttentionWeights",
    "LayerWeights",
    "MoeWeights",
    "MtpWeights",
    "Qwen35Weights",
    "VisionBlockWeights",
    "VisionWeights",
]

F32 = npt.NDArray[np.float32]


@attrs.frozen(eq=False)
class DeltaNetWeights:
    qkv: F32
    """[2·Hk·Dk + Hv·Dv, h], rows q | k | v, each head-major."""
    z: F32
    """[Hv·Dv, h] output gate."""
    b: F32
    """[Hv, h] beta."""
    a: F32
    """[Hv, h] decay."""
    conv: F32
    """[conv, 4], last tap = current token."""
    neg_exp_a: F32
    """[Hv], -exp(A_log)."""
    dt_bias: F32
    """[Hv]."""
    gdn_norm: F32
    """[Dv], plain weight."""
    out: F32
    """[h, Hv·Dv]."""


@attrs.frozen(eq=False)
class FullAttentionWeights:
    q: F32
    """[2·H·D, h], rows q_0 | gate_0 | q_1 | gate_1 | …"""
    k: F32
    """[Hkv·D, h]."""
    v: F32
    """[Hkv·D, h]."""
    o: F32
    """[h, H·D]."""
    q_norm: F32
    """[D] scale."""
    k_norm: F32
    """[D] scale."""


@attrs.frozen(eq=False)
class FfnWeights:
    """``down(silu(gate x) · up x)``."""

    gate: F32
    """[ffn, h]."""
    up: F32
    """[ffn, h]."""
    down: F32
    """[h, ffn]."""


@attrs.frozen(eq=False)
class MoeWeights:
    router: F32
    """[E, h]."""
    gate_up: F32
    """[E, 2·I, h], per expert I rows of the gate, then I rows of up."""
    down: F32
    """[E, h, I]."""
    shared: FfnWeights
    """The shared expert."""
    shared_gate: F32
    """[1, h]."""


@attrs.frozen(eq=False)
class LayerWeights:
    input_norm: F32
    """[h] scale."""
    mixer: DeltaNetWeights | FullAttentionWeights
    post_norm: F32
    """[h] scale, before the feed-forward."""
    ffn: FfnWeights | MoeWeights


@attrs.frozen(eq=False)
class MtpWeights:
    """Multi-token-prediction block (spec qwen35 §15). Recognised, checked and kept for speculation."""

    fc: F32
    """[h, 2h], embedding first."""
    embedding_norm: F32
    hidden_norm: F32
    layers: tuple[LayerWeights, ...]
    norm: F32


@attrs.frozen(eq=False)
class VisionBlockWeights:
    norm1: F32
    norm1_bias: F32
    qkv: F32
    """[3d, d], all q, all k, all v."""
    qkv_bias: F32
    proj: F32
    proj_bias: F32
    norm2: F32
    norm2_bias: F32
    fc1: F32
    fc1_bias: F32
    fc2: F32
    fc2_bias: F32


@attrs.frozen(eq=False)
class VisionWeights:
    patch: F32
    """[d, 3·p·p], temporal slices added up."""
    patch_bias: F32
    positions: F32
    """[Ng², d]."""
    blocks: tuple[VisionBlockWeights, ...]
    merger_norm: F32
    merger_norm_bias: F32
    merger_fc1: F32
    merger_fc1_bias: F32
    merger_fc2: F32
    merger_fc2_bias: F32


@attrs.frozen(eq=False)
class Qwen35Weights:
    embed: F32
    """[V, h]."""
    layers: tuple[LayerWeights, ...]
    final_norm: F32
    """[h] scale."""
    head: F32
    """[V, h]; the same array as ``embed`` when tied."""
    vision: VisionWeights | None
    mtp: MtpWeights | None
