"""The tokenizer: text to ids, ids to bytes and text.

The arithmetic is the ``tokenizers`` library's, built without added tokens. In messages added tokens become ids by
position only: the chat template's renderer says which pieces are tokens (:mod:`luce.text.chat_template`), text from a
caller never is. Who writes a whole prompt writes the template's part too, so there their text is parsed
(:meth:`Tokenizer.encode_prompt`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence

from tokenizers import Tokenizer as LibraryTokenizer

from luce.errors import ModelFileError, RequestError, reason
from luce.text.byte_level import to_bytes
from luce.text.vocabulary import Vocabulary, read_vocabulary
from luce.weights.sources import TokenizerSource

__all__ = ["Tokenizer", "check_unicode"]

_PROBE = (
    "Probe 123: \u0928\u092e\u0938\u094d\u0924\u0947,  \u4f60\u597d!\r\n" + "a" * 64 + " " * 64 + "." * 64
)


class Tokenizer:
    """Immutable; safe to use from several threads at once."""

    def __init__(self, source: TokenizerSource) -> None:
        """Build the tokenizer (about a second for 250,000 tokens).

        Raises:
            ModelFileError: the source is malformed, contradictory, or of an unknown kind.
        """
        vocabulary = read_vocabulary(source)
        self._library = _build(vocabulary)
        self.special_ids: dict[str, int] = {token.text: token.id for token in vocabulary.added}
        """All added tokens, special or not: text -> id."""
        self.names: dict[str, str] = vocabulary.names
        """Named tokens for templates ("bos_token", "eos_token", …)."""
        self._added = re.compile(
            "|".join(map(re.escape, sorted(self.special_ids, key=len, reverse=True))) or "(?!)"
        )
        self._tokens = vocabulary.tokens
        self._skipped = frozenset(token.id for token in vocabulary.added if token.special)
        count = 1 + max(max(self._tokens.values()), *(token.id for token in vocabulary.added), 0)
        self._bytes: list[bytes] = [b""] * count
        for text, index in self._tokens.items():
            self._bytes[index] = to_bytes(text)
        for token in vocabulary.added:
            self._bytes[token.id] = token.text.encode()

    @property
    def num_token_ids(self) -> int:
        """Highest id that is a token, plus one. Embedding rows at or past it are padding and never
        sampled.
        """
        return len(self._bytes)

    @property
    def vocab_size(self) -> int:
        """Number of ids that the tokenizer knows; the embedding may have more rows
        (``TextConfig.vocab_size``).
        """
        return len(self._bytes)

    def is_special(self, token_id: int) -> bool:
        """Is the token left out of decoded text when special tokens are skipped?"""
        return token_id in self._skipped

    def id_of(self, token: str) -> int | None:
        """Id of an added token, or of a vocabulary text (byte alphabet); None when there is none."""
        index = self.special_ids.get(token)
        return self._tokens.get(token) if index is None else index

    def encode_text(self, text: str, *, field: str | None = None) -> list[int]:
        """Ids of plain text: ``<|im_end|>`` in it becomes the ids of its ten characters, never token 248046.

        Raises:
            RequestError: the text holds lone surrogates; names ``field``.
        """
        return self._encode([text], field)[0]

    def encode_prompt(self, text: str, *, field: str | None = None) -> list[int]:
        """Ids of a prompt that the caller wrote whole: the text of an added token is that token, the longest first.

        Raises:
            RequestError: the text holds lone surrogates; names ``field``.
        """
        pieces: list[str | int] = []
        place = 0
        for found in self._added.finditer(text):
            pieces += [text[place : found.start()], self.special_ids[found[0]]]
            place = found.end()
        return self.encode_rendered([*pieces, text[place:]], field=field)

    def encode_rendered(self, pieces: Iterable[str | int], *, field: str | None = "messages") -> list[int]:
        """Ids of a rendered prompt: strings are plain text, integers are ids of added tokens as they stand.

        Raises:
            RequestError: a string holds lone surrogates; names ``field``.
        """
        pieces = list(pieces)
        encoded = iter(self._encode([piece for piece in pieces if isinstance(piece, str)], field))
        ids: list[int] = []
        for piece in pieces:
            if isinstance(piece, str):
                ids += next(encoded)
            else:
                ids.append(piece)
        return ids

    def token_bytes(self, token_id: int) -> bytes:
        """Bytes that the token stands for; b"" for ids that are no token (padding rows)."""
        return self._bytes[token_id] if 0 <= token_id < len(self._bytes) else b""

    def decode(self, ids: Iterable[int], skip_special: bool = True) -> str:
        """Text of ids. Bytes that are no UTF-8 become U+FFFD, one per maximal part.

        Tokens like ``<think>`` and ``<tool_call>`` are kept in either case: they are added, but not special.
        """
        skipped = self._skipped if skip_special else frozenset()
        data = b"".join([self.token_bytes(index) for index in ids if index not in skipped])
        return data.decode("utf-8", "replace")

    def _encode(self, texts: Sequence[str], field: str | None) -> list[list[int]]:
        for text in texts:
            check_unicode(text, field)
        try:
            # the batch call releases the interpreter lock; encode() does not
            return [
                list(found.ids)
                for found in self._library.encode_batch_fast(list(texts), add_special_tokens=False)
            ]
        except BaseException as error:
            if not _from_library(error):
                raise
            raise RequestError(f"the text cannot be tokenized: {reason(error)}", field=field) from None


def check_unicode(text: str, field: str | None) -> None:
    """Refuse text with lone surrogates (JSON escapes such as ``\\ud800`` give them), which has no UTF-8 form.

    Raises:
        RequestError: names ``field`` and the place.
    """
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        code, place = ord(text[error.start]), error.start
        raise RequestError(
            f"{field or 'the text'} holds the lone surrogate U+{code:04X} at character {place}; send valid Unicode",
            field=field,
        ) from None


def _build(vocabulary: Vocabulary) -> LibraryTokenizer:
    """The library's tokenizer, tried once: broken patterns and merges show at load, not at the first
    request.
    """
    try:
        library = LibraryTokenizer.from_str(json.dumps(vocabulary.spec))
        library.encode_batch_fast([_PROBE], add_special_tokens=False)
    except BaseException as error:
        if not _from_library(error):
            raise
        raise ModelFileError(vocabulary.path, f"is no usable tokenizer: {reason(error)}") from None
    return library


def _from_library(error: BaseException) -> bool:
    """Errors of the library: plain exceptions, or panics of its Rust code, which are no
    :class:`Exception`.
    """
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"
