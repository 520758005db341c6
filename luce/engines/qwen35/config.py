"""The shape of a Qwen3.5 vision-language model, dense or mixture of experts, independent of its file form."""

from __future__ import annotations

import attrs

__all__ = ["FAMILY_NAME", "FAMILY_SAMPLING", "MoeConfig", "Qwen35Config", "TextConfig", "VisionConfig"]

FAMILY_NAME = "Qwen3.5"
FAMILY_SAMPLING = {"temperature": 1.0, "top_k": 20, "top_p": 0.95}
"""What the released models' own files recommend (spec qwen35 §1.3), for files that leave it out."""


@attrs.frozen
class MoeConfig:
    """The feed-forward of a mixture of experts, the same in every layer (spec qwen35 §8).

    Each row goes through the ``used`` experts that its router prefers, weighted by the softmax of their logits, and
    through the shared expert, weighted by a sigmoid gate of its own.
    """

    experts: int
    """E."""
    used: int
    """Experts for each row."""
    ffn: int
    """I, hidden values of an expert."""
    shared_ffn: int
    """Is, hidden values of the shared expert."""


@attrs.frozen
class TextConfig:
    """Text model (spec qwen35 §1.1, §4-9). Names follow the short forms given in the specification."""

    vocab_size: int
    """Rows of the embedding and head; ids at or past ``num_token_ids`` are padding and are never sampled."""
    hidden: int
    num_layers: int
    ffn: int
    """Hidden values of the feed-forward layers; 0 where ``moe`` says what they are instead."""
    heads: int
    """H, query heads of full attention."""
    kv_heads: int
    """Hkv."""
    head_dim: int
    """D; not hidden / H."""
    key_heads: int
    """Hk, key heads of the gated DeltaNet."""
    value_heads: int
    """Hv, a multiple of Hk; value head h uses key head h // (Hv / Hk) once loaded, from either file form."""
    key_dim: int
    """Dk."""
    value_dim: int
    """Dv."""
    conv_kernel: int
    full_attention: tuple[bool, ...]
    """Per layer: full attention (True) or gated DeltaNet (False)."""
    rms_eps: float
    rope_theta: float
    rotary_dim: int
    """Leading dims of each head that are rotated (64 of 256)."""
    mrope_section: tuple[int, int, int]
    max_positions: int
    tied: bool
    num_mtp_layers: int = 0
    moe: MoeConfig | None = None
    """None: a dense model."""

    @property
    def conv_channels(self) -> int:
        """2·Hk·Dk + Hv·Dv."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    @property
    def value_size(self) -> int:
        """Hv·Dv."""
        return self.value_heads * self.value_dim


@attrs.frozen
class VisionConfig:
    """Vision tower (spec qwen35 §12)."""

    depth: int
    hidden: int
    heads: int
    ffn: int
    patch_size: int
    temporal_patch_size: int
    merge_size: int
    grid_side: int
    """Side Ng of the learned position table (Ng² rows)."""
    out_hidden: int
    layer_norm_eps: float = 1e-6
    in_channels: int = 3


@attrs.frozen
class Qwen35Config:
    text: TextConfig
    vision: VisionConfig | None
    """None: the files hold no vision tower; requests with images are refused."""
    image_token_id: int | None
    vision_start_id: int | None
    vision_end_id: int | None
    eos_token_ids: tuple[int, ...]
    """Ids that end an answer (chat end and end of text, spec qwen35 §2)."""
    num_token_ids: int | None = None
    """Ids at or past it are padding rows of the embedding; None when the files hold no tokenizer."""
