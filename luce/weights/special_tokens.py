"""Ids of added tokens and the number of real tokens, from either form of a tokenizer.

Only what the configuration needs (stop ids, vision ids, padding rows of the embedding); ``luce.text``
builds the tokenizer itself.
"""

from __future__ import annotations

from typing import Any

import attrs
import msgspec

from luce.errors import ModelFileError, quoted, reason
from luce.weights.sources import TokenizerSource

__all__ = ["TokenTable", "token_table"]

_CONTROL, _USER_DEFINED, _UNUSED = 3, 4, 5


@attrs.frozen(eq=False)
class TokenTable:
    """Added tokens by text, and how many ids are tokens at all."""

    added: dict[str, int]
    count: int
    """Highest id that is a token, plus one; rows of the embedding past it are padding."""


class _AddedToken(msgspec.Struct):
    id: int
    content: str


class _Model(msgspec.Struct):
    vocab: dict[str, int] = msgspec.field(default_factory=dict)


class _TokenizerJson(msgspec.Struct):
    model: _Model
    added_tokens: list[_AddedToken] = msgspec.field(default_factory=list)


def token_table(source: TokenizerSource) -> TokenTable:
    """Read the table.

    Raises:
        ModelFileError: the tokenizer file is malformed, or two files give one token different ids.
    """
    return _from_lists(source) if source.json_text is None else _from_json(source, source.json_text)


def _from_lists(source: TokenizerSource) -> TokenTable:
    kinds = source.token_types
    if not kinds:
        return TokenTable({}, len(source.tokens))
    if len(kinds) != len(source.tokens):
        raise ModelFileError(
            source.path, f"tokenizer.ggml.token_type has {len(kinds)} entries for {len(source.tokens)} tokens"
        )
    added = {
        text: index
        for index, (text, kind) in enumerate(zip(source.tokens, kinds, strict=True))
        if kind in (_CONTROL, _USER_DEFINED)
    }
    count = len(kinds)
    while count and kinds[count - 1] == _UNUSED:
        count -= 1
    return TokenTable(added, count)


def _from_json(source: TokenizerSource, text: str) -> TokenTable:
    try:
        parsed = msgspec.json.decode(text, type=_TokenizerJson)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ModelFileError(source.path, f"is not a tokenizer.json: {reason(error)}") from None
    added: dict[str, int] = {}
    owner: dict[str, str] = {}

    def put(content: str, index: int, where: str) -> None:
        if added.setdefault(content, index) != index:
            raise ModelFileError(
                source.path,
                f"token {quoted(content)} has id {added[content]} in {owner[content]}, but {index} in {where}",
            )
        owner.setdefault(content, where)

    for token in parsed.added_tokens:
        put(token.content, token.id, "added_tokens")
    for key, entry in _decoder(source).items():
        content = entry.get("content") if isinstance(entry, dict) else None
        if not key.isdecimal() or not isinstance(content, str):
            raise ModelFileError(source.path.with_name("tokenizer_config.json"), f"added token {quoted(key)}")
        put(content, int(key), "tokenizer_config.json")
    for content, index in source.added_tokens.items():
        put(content, index, "added_tokens.json")
    highest = max((*added.values(), *parsed.model.vocab.values()), default=-1)
    return TokenTable(added, highest + 1)


def _decoder(source: TokenizerSource) -> dict[str, Any]:
    found = source.config.get("added_tokens_decoder") or {}
    if not isinstance(found, dict):
        raise ModelFileError(
            source.path.with_name("tokenizer_config.json"), "added_tokens_decoder is not an object"
        )
    return found
