"""Ids with a meaning: where an answer ends, how pictures are marked (spec qwen35 §2, pitfalls 24, 35)."""

from __future__ import annotations

from collections.abc import Iterable

from luce.errors import ModelFileError
from luce.weights.model_files import ModelFiles
from luce.weights.special_tokens import TokenTable, token_table

__all__ = ["END_TOKENS", "VISION_TOKENS", "read_token_table", "stop_ids"]

END_TOKENS = ("<|im_end|>", "<|endoftext|>")
"""End of a chat turn and end of text: an answer stops at both, whatever single id the configuration names."""
VISION_TOKENS = ("<|image_pad|>", "<|vision_start|>", "<|vision_end|>")


def read_token_table(files: ModelFiles, vocab_size: int) -> TokenTable | None:
    """The added tokens, checked to fit the embedding; None when the files hold no tokenizer.

    Raises:
        ModelFileError: the tokenizer has more ids than the embedding has rows.
    """
    if files.tokenizer is None:
        return None
    table = token_table(files.tokenizer)
    if table.count > vocab_size:
        raise ModelFileError(
            files.tokenizer.path, f"has ids up to {table.count - 1}, the embedding only {vocab_size} rows"
        )
    return table


def stop_ids(
    files: ModelFiles, table: TokenTable | None, vocab_size: int, named: Iterable[int]
) -> tuple[int, ...]:
    """All ids that end an answer, ascending.

    Args:
        named: ids from the configuration files.

    Raises:
        ModelFileError: there is none, or one is outside the vocabulary.
    """
    found = set(named)
    if table is not None:
        found |= {table.added[text] for text in (*END_TOKENS, _eos_text(files)) if text in table.added}
    outside = [index for index in found if not 0 <= index < vocab_size]
    if outside:
        raise ModelFileError(
            files.config_path, f"eos_token_id {outside[0]} is outside the vocabulary of {vocab_size}"
        )
    if not found:
        raise ModelFileError(
            files.config_path, "eos_token_id: missing (no stop token in the configuration or the tokenizer)"
        )
    return tuple(sorted(found))


def _eos_text(files: ModelFiles) -> str:
    """``eos_token`` of ``tokenizer_config.json``: a string or {"content": …}."""
    found = files.tokenizer.config.get("eos_token") if files.tokenizer is not None else None
    if isinstance(found, dict):
        found = found.get("content")
    return found if isinstance(found, str) else ""
