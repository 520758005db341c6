"""Incremental detokenisation: ids in, text out, never half a character."""

from __future__ import annotations

import codecs

from luce.text.tokenizer import Tokenizer

__all__ = ["Detokenizer"]

_Utf8Decoder = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """One answer's text so far, as at most three pending bytes. Belongs to its request; not shared.

    The joined pieces of :meth:`feed` and :meth:`flush` equal ``tokenizer.decode(all ids, skip_special)``. A
    piece holds no U+FFFD for a character that the next token may complete; bytes that can never become one
    come out as U+FFFD at once. The cost per token does not depend on the length of the answer.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._decoder = _Utf8Decoder("replace")

    @property
    def pending(self) -> bytes:
        """Bytes of a character that is not complete yet."""
        return self._decoder.getstate()[0]

    def feed(self, token_id: int) -> str:
        """Text that this token completes; "" while a character is incomplete, or for a skipped special
        token.
        """
        if self._skip_special and self._tokenizer.is_special(token_id):
            return ""
        return self._decoder.decode(self._tokenizer.token_bytes(token_id))

    def flush(self) -> str:
        """The incomplete tail as U+FFFD, once, at the end of the answer; "" when there is none."""
        tail = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return tail
