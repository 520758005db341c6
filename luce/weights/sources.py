"""What the files of a model say beside tensors: tokenizer, template, generation, preprocessing.

Nothing here interprets the contents: ``luce.text`` and ``luce.vision`` build their objects from these, so
that they need not know whether a model came as a Hugging Face directory or as GGUF files.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs

__all__ = [
    "MAX_TEMPLATE_CHARS",
    "ChatTemplateSource",
    "GenerationSource",
    "PreprocessorSource",
    "TokenizerSource",
]

MAX_TEMPLATE_CHARS = 1_000_000
"""A longer chat template is refused; those of this family have about 8,000 characters."""


@attrs.frozen(eq=False)
class TokenizerSource:
    """A tokenizer as its files give it: ``tokenizer.json`` text, or the lists of a GGUF.

    Exactly one of the two forms is filled: ``json_text`` is a string, or ``tokens`` is not empty.
    """

    path: Path
    """File to name in errors: ``tokenizer.json`` or the GGUF."""
    json_text: str | None = None
    """Contents of ``tokenizer.json``."""
    config: dict[str, Any] = attrs.field(factory=dict)
    """Contents of ``tokenizer_config.json`` (``added_tokens_decoder``, ``eos_token``, …); {} when absent."""
    added_tokens: dict[str, int] = attrs.field(factory=dict)
    """Contents of ``added_tokens.json``: text -> id; {} when absent."""
    special_tokens: dict[str, Any] = attrs.field(factory=dict)
    """Contents of ``special_tokens_map.json``; {} when absent."""
    model: str = ""
    """GGUF ``tokenizer.ggml.model``, "gpt2" for byte-level BPE."""
    pre: str = ""
    """GGUF ``tokenizer.ggml.pre``, the name of the pre-tokenizer ("qwen35", "qwen2", …)."""
    tokens: list[str] = attrs.field(factory=list)
    """GGUF token texts by id (byte-level alphabet for ordinary tokens)."""
    merges: list[str] = attrs.field(factory=list)
    """GGUF merges, "left right", by rank."""
    token_types: list[int] = attrs.field(factory=list)
    """GGUF types by id: 1 normal, 2 unknown, 3 control, 4 user defined, 5 unused, 6 byte; [] when absent."""
    bos_id: int | None = None
    eos_id: int | None = None
    """GGUF ``eos_token_id`` (for this family the end of a chat turn)."""
    padding_id: int | None = None
    add_bos: bool = False


@attrs.frozen
class ChatTemplateSource:
    """Jinja text of the chat template, unchecked, at most :data:`MAX_TEMPLATE_CHARS` characters."""

    text: str
    path: Path
    """File it came from."""


@attrs.frozen
class GenerationSource:
    """Sampling defaults of ``generation_config.json`` or ``general.sampling.*``; None what is not said."""

    eos_token_ids: tuple[int, ...] = ()
    do_sample: bool | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None


@attrs.frozen
class PreprocessorSource:
    """Image preprocessing constants (spec qwen35 §1.3, §11)."""

    patch_size: int
    temporal_patch_size: int
    merge_size: int
    min_pixels: int
    """Smallest area H·W of a resized picture, in pixels."""
    max_pixels: int
    """Largest area H·W."""
    image_mean: tuple[float, float, float]
    image_std: tuple[float, float, float]
    path: Path
    """File to name in errors."""
