"""Added tokens of several files, merged: texts that stand for one id by themselves."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import attrs

from luce.errors import ModelFileError, quoted

__all__ = ["MAX_ID", "NEVER_SKIPPED", "AddedToken", "AddedTokens"]

NEVER_SKIPPED = frozenset(
    ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
)
"""Single ids that answers are parsed by: decoding keeps them even where a file marks them special."""

MAX_ID = 1 << 22
"""Ids at or past it are refused: tables are sized by the highest one."""


@attrs.frozen
class AddedToken:
    """A token that stands outside the BPE part."""

    id: int
    text: str
    special: bool
    """Left out of decoded text when special tokens are skipped."""


class AddedTokens:
    """Added tokens of several files, merged; contradictions are errors."""

    def __init__(self, vocab: Mapping[str, int]) -> None:
        self._vocab = vocab
        self._vocab_texts = {index: text for text, index in vocab.items()}
        self._by_text: dict[str, AddedToken] = {}
        self._by_id: dict[int, AddedToken] = {}

    def put(self, path: Path, index: object, entry: object) -> None:
        """Add one as its file gives it: ``entry`` is an object with ``content`` and perhaps ``special``.

        Raises:
            ModelFileError: malformed, or against an earlier entry or the vocabulary; names ``path``.
        """
        content = entry.get("content") if isinstance(entry, dict) else None
        if not isinstance(entry, dict) or not isinstance(content, str) or not content:
            raise ModelFileError(path, f"added token {quoted(index)} has no text")
        if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < MAX_ID:
            raise ModelFileError(path, f"added token {quoted(content)} has the id {quoted(index)}")
        if not _is_unicode(content):
            raise ModelFileError(path, f"added token {index} is no valid Unicode text")
        if any(entry.get(flag) for flag in ("lstrip", "rstrip", "single_word")):
            raise ModelFileError(
                path, f"added token {quoted(content)} sets lstrip, rstrip or single_word; not supported"
            )
        earlier = self._by_text.get(content)
        if earlier is not None and earlier.id != index:
            raise ModelFileError(
                path, f"added token {quoted(content)} has id {index} here and {earlier.id} elsewhere"
            )
        other = self._by_id.get(index)
        if other is not None and other.text != content:
            raise ModelFileError(
                path, f"id {index} is added token {quoted(content)} here and {quoted(other.text)} elsewhere"
            )
        if self._vocab.get(content, index) != index:
            raise ModelFileError(
                path,
                f"added token {quoted(content)} has id {index}, in the vocabulary {self._vocab[content]}",
            )
        if self._vocab_texts.get(index, content) != content:
            raise ModelFileError(
                path,
                f"id {index} is {quoted(content)} here and {quoted(self._vocab_texts[index])} in the vocabulary",
            )
        default = earlier.special if earlier is not None else False
        special = bool(entry.get("special", default)) and content not in NEVER_SKIPPED
        self._by_text[content] = self._by_id[index] = AddedToken(index, content, special)

    def tokens(self) -> tuple[AddedToken, ...]:
        """All of them by id."""
        return tuple(sorted(self._by_text.values(), key=lambda token: token.id))


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
