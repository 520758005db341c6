"""A small byte-level BPE tokenizer in both file forms, with the family's added tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from luce.text.byte_level import to_text
from luce.text.vocabulary import PRE_TOKENIZER_PATTERNS
from luce.weights.sources import TokenizerSource

__all__ = ["ADDED", "ADDED_START", "MERGES", "small_json", "small_lists", "small_source"]

ADDED = (
    ("<|endoftext|>", True),
    ("<|im_start|>", True),
    ("<|im_end|>", True),
    ("<|object_ref_start|>", True),
    ("<|object_ref_end|>", True),
    ("<|box_start|>", True),
    ("<|box_end|>", True),
    ("<|quad_start|>", True),
    ("<|quad_end|>", True),
    ("<|vision_start|>", True),
    ("<|vision_end|>", True),
    ("<|vision_pad|>", True),
    ("<|image_pad|>", True),
    ("<|video_pad|>", True),
    ("<tool_call>", False),
    ("</tool_call>", False),
    ("<|fim_prefix|>", False),
    ("<|fim_middle|>", False),
    ("<|fim_suffix|>", False),
    ("<|fim_pad|>", False),
    ("<|repo_name|>", False),
    ("<|file_sep|>", False),
    ("<tool_response>", False),
    ("</tool_response>", False),
    ("<think>", False),
    ("</think>", False),
)
"""Text and special flag of the family's added tokens, in id order (spec qwen35 §2)."""

_WORDS = ("the", " the", "ing", " user", "assistant", "\n\n", "  ", "é", "नम", "한", "👩", "\r\n")


def _build() -> tuple[dict[str, int], list[tuple[str, str]]]:
    vocab = {to_text(bytes([byte])): byte for byte in range(256)}
    merges: list[tuple[str, str]] = []
    for word in _WORDS:
        letters = to_text(word.encode())
        left = letters[0]
        for right in letters[1:]:
            if left + right not in vocab:
                vocab[left + right] = len(vocab)
                merges.append((left, right))
            left += right
    return vocab, merges


VOCAB, MERGES = _build()
ADDED_START = len(VOCAB)


def small_json(**changes: Any) -> dict[str, Any]:
    """A tokenizer.json object; ``changes`` replace members."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    split = {"Regex": PRE_TOKENIZER_PATTERNS["qwen35"]}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": ADDED_START + i,
                "content": text,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": special,
            }
            for i, (text, special) in enumerate(ADDED)
        ],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": split, "behavior": "Isolated", "invert": False},
                byte_level,
            ],
        },
        "post_processor": byte_level,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": VOCAB, "merges": [list(pair) for pair in MERGES]},
        **changes,
    }


def small_source(config: dict[str, Any] | None = None, **changes: Any) -> TokenizerSource:
    names = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    return TokenizerSource(
        Path("model/tokenizer.json"), json.dumps(small_json(**changes)), names if config is None else config
    )


def small_lists(**changes: Any) -> TokenizerSource:
    """The same tokenizer as GGUF lists."""
    fields: dict[str, Any] = {
        "path": Path("model.gguf"),
        "model": "gpt2",
        "pre": "qwen35",
        "tokens": [*VOCAB, *(text for text, _ in ADDED), "[PAD1]", "[PAD2]"],
        "merges": [" ".join(pair) for pair in MERGES],
        "token_types": [*[1] * len(VOCAB), *(3 if special else 4 for _, special in ADDED), 5, 5],
    }
    return TokenizerSource(**{**fields, **changes})
