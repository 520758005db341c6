"""Token ids that a client sends."""

from __future__ import annotations

from collections.abc import Sequence

from luce.errors import RequestError, quoted
from luce.text.tokenizer import Tokenizer

__all__ = ["check_ids"]


def check_ids(ids: Sequence[int], tokenizer: Tokenizer, field: str) -> None:
    """Raises RequestError for the first id that is no token. The model may have more rows, which stand for nothing."""
    count = tokenizer.num_token_ids
    for place, index in enumerate(ids):
        if not 0 <= index < count:
            raise RequestError(
                f"{field}[{place}]: token id {quoted(index)} is outside the vocabulary of {count} ids",
                field=f"{field}[{place}]",
            )
