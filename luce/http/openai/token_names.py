"""How a token is written where answers name tokens."""

from __future__ import annotations

from luce.text.tokenizer import Tokenizer

__all__ = ["token_name"]


def token_name(tokenizer: Tokenizer, token: int) -> str:
    """A token's text; of one that is part of a character its bytes, as OpenAI writes them: ``bytes:`` and hexadecimal
    escapes."""
    data = tokenizer.token_bytes(token)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
