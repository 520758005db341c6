"""A byte-level BPE tokenizer of 256 byte tokens, a few merges and this family's added tokens, in both file forms."""

from __future__ import annotations

from typing import Any

__all__ = ["CHAT_TEMPLATE", "NUM_TOKENS", "TOKEN_IDS", "gguf_lists", "tokenizer_config", "tokenizer_json"]

PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
MERGES = ("Ġ t", "h e", "Ġt he", "i n", "in g", "e r", "o n", "a n", "Ġ a", "r e")
ADDED = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
)
_PLAIN = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
"""Single ids that are not special: decoding keeps them."""


def _byte_alphabet() -> list[str]:
    """GPT-2's printable stand-ins for the 256 bytes, in the order of its vocabulary."""
    kept = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    moved = [chr(256 + index) for index in range(256 - len(kept))]
    return [*map(chr, kept), *moved]


def _vocabulary() -> list[str]:
    return [*_byte_alphabet(), *(merge.replace(" ", "") for merge in MERGES)]


TOKEN_IDS = {text: len(_vocabulary()) + index for index, text in enumerate(ADDED)}
NUM_TOKENS = len(_vocabulary()) + len(ADDED)

CHAT_TEMPLATE = """\
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{% if message.content is string -%}
{{ message.content | trim }}
{%- else -%}
{%- for part in message.content -%}
{%- if part.type in ('image', 'image_url') -%}
<|vision_start|><|image_pad|><|vision_end|>
{%- else -%}
{{ part.text }}
{%- endif -%}
{%- endfor -%}
{%- endif -%}
<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% if enable_thinking is defined and enable_thinking -%}
<think>
{% else -%}
<think>

</think>

{% endif -%}
{%- endif -%}
"""


def tokenizer_json() -> dict[str, Any]:
    """``tokenizer.json`` of spec qwen35 §2: NFC, split pattern, byte level."""
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": TOKEN_IDS[text],
                "content": text,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": text not in _PLAIN,
            }
            for text in ADDED
        ],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": PATTERN}, "behavior": "Isolated", "invert": False},
                {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
            ],
        },
        "post_processor": {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": False,
            "use_regex": False,
        },
        "decoder": {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": False,
            "use_regex": False,
        },
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {text: index for index, text in enumerate(_vocabulary())},
            "merges": [merge.split(" ") for merge in MERGES],
        },
    }


def tokenizer_config() -> dict[str, Any]:
    """``tokenizer_config.json`` without a template (that is in ``chat_template.jinja``)."""
    return {
        "add_bos_token": False,
        "added_tokens_decoder": {
            str(TOKEN_IDS[text]): {
                "content": text,
                "lstrip": False,
                "normalized": False,
                "rstrip": False,
                "single_word": False,
                "special": text not in _PLAIN,
            }
            for text in ADDED
        },
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "tokenizer_class": "Qwen2Tokenizer",
    }


def gguf_lists(rows: int) -> tuple[list[str], list[int], list[str]]:
    """(tokens, token types, merges) padded to ``rows`` with unused tokens, as converters do."""
    tokens = [*_vocabulary(), *ADDED]
    kinds = [1] * len(_vocabulary()) + [4 if text in _PLAIN else 3 for text in ADDED]
    padding = range(len(tokens), rows)
    return [*tokens, *(f"[PAD{index}]" for index in padding)], kinds + [5] * len(padding), list(MERGES)
