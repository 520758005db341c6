"""From either form of a tokenizer (``tokenizer.json`` or GGUF lists) to one description: BPE part and added
tokens.

Source: spec qwen35 §2. The BPE part is a ``tokenizer.json`` object without added tokens, so that text never
parses as special tokens; added tokens are kept apart and stand for their ids by position only.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import attrs

from luce.errors import ModelFileError, quoted, reason
from luce.text.added_tokens import MAX_ID, NEVER_SKIPPED, AddedToken, AddedTokens
from luce.weights.sources import TokenizerSource

__all__ = ["PRE_TOKENIZER_PATTERNS", "Vocabulary", "read_vocabulary"]

PRE_TOKENIZER_PATTERNS = {
    "qwen2": (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
    "qwen35": (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
        r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
}
"""Split pattern by GGUF ``tokenizer.ggml.pre``. They differ in combining marks, which qwen35 keeps inside
words.
"""

_UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = 2, 3, 4, 5


@attrs.frozen(eq=False)
class Vocabulary:
    """A tokenizer as data."""

    path: Path
    spec: dict[str, Any]
    """``tokenizer.json`` object of the BPE part alone."""
    added: tuple[AddedToken, ...]
    names: dict[str, str]
    """Texts of named tokens that templates may ask for ("bos_token", "eos_token", "pad_token", …)."""

    @property
    def tokens(self) -> dict[str, int]:
        """BPE token texts (byte alphabet) to ids."""
        tokens: dict[str, int] = self.spec["model"]["vocab"]
        return tokens


def read_vocabulary(source: TokenizerSource) -> Vocabulary:
    """Read and check a tokenizer source.

    Raises:
        ModelFileError: the files are malformed, contradict each other, or are no byte-level BPE.
    """
    return _from_lists(source) if source.json_text is None else _from_json(source, source.json_text)


def _from_json(source: TokenizerSource, text: str) -> Vocabulary:
    path = source.path
    try:
        spec = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelFileError(path, f"is not JSON: {reason(error)}") from None
    model = spec.get("model") if isinstance(spec, dict) else None
    if not isinstance(model, dict) or model.get("type", "BPE") != "BPE":
        raise ModelFileError(path, "model.type is not BPE; only byte-level BPE tokenizers are supported")
    vocab = model.get("vocab")
    if not isinstance(vocab, dict) or not vocab:
        raise ModelFileError(path, "model.vocab is missing or empty")
    _check_ids(path, vocab)
    for field in ("byte_fallback", "dropout", "fuse_unk", "continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(field):
            raise ModelFileError(path, f"model.{field} is set; only plain byte-level BPE is supported")
    if "ByteLevel" not in _kinds(spec.get("decoder"), "decoders"):
        raise ModelFileError(path, "decoder is not ByteLevel; only byte-level BPE tokenizers are supported")
    table = AddedTokens(vocab)
    listed = spec.get("added_tokens") or []
    if not isinstance(listed, list):
        raise ModelFileError(path, "added_tokens is not a list")
    for entry in listed:
        table.put(path, entry.get("id") if isinstance(entry, dict) else None, entry)
    config_path = path.with_name("tokenizer_config.json")
    decoder = source.config.get("added_tokens_decoder") or {}
    if not isinstance(decoder, dict):
        raise ModelFileError(config_path, "added_tokens_decoder is not an object")
    for key, entry in decoder.items():
        table.put(config_path, int(key) if key.isascii() and key.isdecimal() else key, entry)
    for content, index in source.added_tokens.items():
        table.put(path.with_name("added_tokens.json"), index, {"content": content})
    spec = {
        **spec,
        "added_tokens": [],
        "post_processor": None,
        "truncation": None,
        "padding": None,
    }
    return Vocabulary(path, spec, table.tokens(), _names(source.special_tokens) | _names(source.config))


def _from_lists(source: TokenizerSource) -> Vocabulary:
    path = source.path
    if source.model != "gpt2":
        raise ModelFileError(
            path, f"tokenizer.ggml.model is {quoted(source.model)}; only 'gpt2' (byte-level BPE) is supported"
        )
    pattern = PRE_TOKENIZER_PATTERNS.get(source.pre)
    if pattern is None:
        known = ", ".join(sorted(PRE_TOKENIZER_PATTERNS))
        raise ModelFileError(path, f"tokenizer.ggml.pre is {quoted(source.pre)}; known are {known}")
    if source.add_bos:
        raise ModelFileError(path, "tokenizer.ggml.add_bos_token is true; this family has no begin token")
    if not source.merges:
        raise ModelFileError(path, "tokenizer.ggml.merges is missing")
    if len(source.token_types) != len(source.tokens):
        raise ModelFileError(
            path,
            f"{len(source.token_types)} tokenizer.ggml.token_type entries for {len(source.tokens)} tokens",
        )
    vocab: dict[str, int] = {}
    added: list[AddedToken] = []
    for index, (text, kind) in enumerate(zip(source.tokens, source.token_types, strict=True)):
        if kind in (_UNKNOWN, _CONTROL, _USER_DEFINED):
            added.append(AddedToken(index, text, kind != _USER_DEFINED and text not in NEVER_SKIPPED))
        elif kind != _UNUSED and vocab.setdefault(text, index) != index:
            raise ModelFileError(path, f"tokens {vocab[text]} and {index} are both {quoted(text)}")
    _check_ids(path, vocab)
    table = AddedTokens(vocab)
    for token in added:
        table.put(path, token.id, {"content": token.text, "special": token.special})
    merges = [merge.split(" ") for merge in source.merges]
    for rank, pair in enumerate(merges):
        if len(pair) != 2 or not all(pair):
            raise ModelFileError(
                path, f"tokenizer.ggml.merges[{rank}] is {quoted(source.merges[rank])}, not 'left right'"
            )
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    spec: dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False},
                byte_level,
            ],
        },
        "post_processor": None,
        "decoder": {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": False,
            "use_regex": False,
        },
        "model": {"type": "BPE", "vocab": vocab, "merges": merges},
    }
    named = (("bos_token", source.bos_id), ("eos_token", source.eos_id), ("pad_token", source.padding_id))
    names = {
        name: source.tokens[index]
        for name, index in named
        if index is not None and index < len(source.tokens)
    }
    return Vocabulary(path, spec, table.tokens(), names)


def _check_ids(path: Path, vocab: Mapping[str, object]) -> None:
    seen: set[int] = set()
    for text, index in vocab.items():
        if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < MAX_ID:
            raise ModelFileError(path, f"token {quoted(text)} has the id {quoted(index)}")
        if index in seen:
            raise ModelFileError(path, f"two tokens have the id {index}, one is {quoted(text)}")
        seen.add(index)


def _names(config: Mapping[str, Any]) -> dict[str, str]:
    """Named tokens of tokenizer_config.json or special_tokens_map.json: plain text, or an object with
    ``content``.
    """
    found: dict[str, str] = {}
    for key, value in config.items():
        content = value.get("content") if isinstance(value, dict) else value
        if key.endswith("_token") and isinstance(content, str):
            found[key] = content
    return found


def _kinds(part: object, members: str) -> Iterable[str]:
    """Types of a normalizer, pre-tokenizer or decoder entry; those of its members for a Sequence."""
    if not isinstance(part, dict):
        return []
    inner = part.get(members)
    if part.get("type") == "Sequence" and isinstance(inner, list):
        return [str(entry.get("type")) for entry in inner if isinstance(entry, dict)]
    return [str(part.get("type"))]
