"""Tokenizer, template and preprocessing metadata of GGUF files (spec qwen35 §17, §18)."""

from __future__ import annotations

from luce.errors import ModelFileError
from luce.weights.fields import Fields
from luce.weights.hf_sources import MAX_ID, MAX_PIXELS, chat_template, triple
from luce.weights.sources import ChatTemplateSource, GenerationSource, PreprocessorSource, TokenizerSource
from luce.weights.tensor_file import TensorFile

__all__ = ["gguf_chat_template", "gguf_generation", "gguf_preprocessor", "gguf_tokenizer"]

FAMILY_MIN_PIXELS = 65_536
FAMILY_MAX_PIXELS = 16_777_216
"""Area limits of the whole family (spec qwen35 §1.3), for an mmproj that does not state them."""
TEMPORAL_PATCH_SIZE = 2
"""An mmproj has no key for it: its patch embedding comes as two tensors."""


def gguf_tokenizer(file: TensorFile) -> TokenizerSource | None:
    """The tokenizer lists; None when the file has none.

    Raises:
        ModelFileError: the lists are of the wrong kind, or their lengths differ.
    """
    fields = Fields(file.path, file.metadata)
    if not fields.has("tokenizer.ggml.tokens"):
        return None
    tokens = _strings(fields, "tokenizer.ggml.tokens")
    kinds = fields.integers("tokenizer.ggml.token_type", 0, 255, default=[])
    if kinds and len(kinds) != len(tokens):
        raise ModelFileError(
            file.path, f"tokenizer.ggml.token_type has {len(kinds)} entries for {len(tokens)} tokens"
        )
    return TokenizerSource(
        path=file.path,
        model=fields.text("tokenizer.ggml.model"),
        pre=fields.text("tokenizer.ggml.pre", ""),
        tokens=tokens,
        merges=_strings(fields, "tokenizer.ggml.merges"),
        token_types=kinds,
        bos_id=_id(fields, "tokenizer.ggml.bos_token_id", len(tokens)),
        eos_id=_id(fields, "tokenizer.ggml.eos_token_id", len(tokens)),
        padding_id=_id(fields, "tokenizer.ggml.padding_token_id", len(tokens)),
        add_bos=fields.flag("tokenizer.ggml.add_bos_token", False),
    )


def _strings(fields: Fields, name: str) -> list[str]:
    found = fields.array(name, default=[])
    if not all(isinstance(entry, str) for entry in found):
        raise fields.fault(name, "is not a list of strings")
    return found


def _id(fields: Fields, name: str, count: int) -> int | None:
    return fields.integer(name, 0, min(MAX_ID, count - 1)) if fields.has(name) else None


def gguf_chat_template(file: TensorFile) -> ChatTemplateSource | None:
    """``tokenizer.chat_template``, size-checked; None when the file has none."""
    found = file.metadata.get("tokenizer.chat_template")
    return None if found is None else chat_template(file.path, found)


def gguf_generation(file: TensorFile) -> GenerationSource:
    """``general.sampling.*`` of newer files; every field None when absent. Stop ids are the tokenizer's."""
    prefix = "general.sampling."
    found = {
        key.removeprefix(prefix): value for key, value in file.metadata.items() if key.startswith(prefix)
    }
    fields = Fields(file.path, found, prefix)

    def number(name: str, high: float) -> float | None:
        return fields.number(name, 0.0, high) if fields.has(name) else None

    return GenerationSource(
        temperature=number("temp", 100.0),
        top_k=fields.integer("top_k", -1, MAX_ID) if fields.has("top_k") else None,
        top_p=number("top_p", 1.0),
        min_p=number("min_p", 1.0),
        repetition_penalty=number("penalty_repeat", 100.0),
    )


def gguf_preprocessor(mmproj: TensorFile) -> PreprocessorSource:
    """``clip.vision.*`` of an mmproj.

    Raises:
        ModelFileError: a key is missing or wrong; names it.
    """
    fields = Fields(mmproj.path, mmproj.metadata)
    low = fields.integer("clip.vision.image_min_pixels", 1, MAX_PIXELS, FAMILY_MIN_PIXELS)
    high = fields.integer("clip.vision.image_max_pixels", 1, MAX_PIXELS, FAMILY_MAX_PIXELS)
    if low > high:
        raise fields.fault("clip.vision.image_min_pixels", f"{low} is above image_max_pixels {high}")
    return PreprocessorSource(
        patch_size=fields.integer("clip.vision.patch_size", 1, 256),
        temporal_patch_size=TEMPORAL_PATCH_SIZE,
        merge_size=fields.integer("clip.vision.spatial_merge_size", 1, 16),
        min_pixels=low,
        max_pixels=high,
        image_mean=triple(fields, "clip.vision.image_mean", -10.0),
        image_std=triple(fields, "clip.vision.image_std", 1e-6),
        path=mmproj.path,
    )
