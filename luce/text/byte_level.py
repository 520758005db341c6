"""The byte alphabet of byte-level BPE (GPT-2): every byte is one printable character in vocabulary texts."""

from __future__ import annotations

from functools import cache

__all__ = ["alphabet", "to_bytes", "to_text"]


@cache
def alphabet() -> dict[str, int]:
    """Character -> byte. Printable bytes stand for themselves, the other 68 for U+0100 onwards, in byte
    order.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


@cache
def _letters() -> tuple[str, ...]:
    return tuple(letter for letter, _ in sorted(alphabet().items(), key=lambda item: item[1]))


def to_bytes(token: str) -> bytes:
    """Bytes of a vocabulary text. One with a character outside the alphabet stands for its own UTF-8 bytes.

    That exception is the ``tokenizers`` library's rule, too; vocabularies use it for tokens with real spaces.
    """
    table = alphabet()
    try:
        return bytes([table[letter] for letter in token])
    except KeyError:
        return token.encode("utf-8", "surrogatepass")


def to_text(data: bytes) -> str:
    """The vocabulary text of a byte string; the inverse of :func:`to_bytes`."""
    letters = _letters()
    return "".join([letters[byte] for byte in data])
