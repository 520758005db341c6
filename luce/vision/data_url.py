"""``data:`` URLs with pictures in them (RFC 2397), read strictly.

Rules:

- ``data:[image/…][;name=value]…;base64,DATA``; the scheme and "base64" in any case. Percent-encoded data without
  base64 is refused.
- DATA is the standard alphabet. Blanks and line breaks are skipped (RFC 2045 wraps lines). Missing padding is
  added, as many clients leave it out; a length that no padding can mend, other characters, and the URL-safe
  alphabet (``-``, ``_``) are errors, since guessing would corrupt pictures.
- The media type must be ``image/…`` or absent. Which image format it names does not matter: the data say it.
- What stands before the comma is at most 1,024 characters.
- Other schemes are refused here; `luce.http.image_sources` has them, where the operator allows any.
"""

from __future__ import annotations

import base64
import binascii
import re
import string

from luce.errors import RequestError, quoted

__all__ = ["data_url", "parse_data_url", "scheme_of"]

_ALPHABET = f"{string.ascii_letters}{string.digits}+/=".encode()
_PIECE = 1 << 18
"""Characters that are worked on in one step, a multiple of 4: other threads run in between."""
_SCHEME = re.compile(r"\s*([A-Za-z][A-Za-z0-9+.-]{0,30}):")
_HEAD = 1024
"""Characters of media type and parameters."""


def scheme_of(url: str) -> str | None:
    """In small letters; None if this is no URL."""
    found = _SCHEME.match(url)
    return found[1].lower() if found else None


def parse_data_url(url: str, *, field: str = "image_url", max_bytes: int | None = None) -> bytes:
    """The bytes of a picture in a ``data:`` URL.

    Args:
        url: the whole URL.
        field: for errors.
        max_bytes: refuse longer pictures before decoding them.

    Raises:
        RequestError: names ``field`` and what is wrong; never quotes the data.
    """
    scheme = scheme_of(url)
    if scheme != "data":
        given = f"{scheme}: URLs are not supported" if scheme else "this is not a URL"
        raise _fault(field, f"{given}; send the picture as data:image/png;base64,…")
    start = url.index(":") + 1
    comma = url.find(",", start, start + _HEAD + 1)
    if comma < 0:
        raise _fault(field, f"the data: URL has no comma before its data, in its first {_HEAD} characters")
    head, data = url[start:comma], url[comma + 1 :]
    media, *parameters = [part.strip() for part in head.split(";")]
    if media and not media.lower().startswith("image/"):
        raise _fault(field, f"the media type is {quoted(media)}, not image/…")
    if not parameters or parameters[-1].lower() != "base64":
        raise _fault(field, "the data: URL is not base64")
    text, strange = _without_blanks(data)
    if not text:
        raise _fault(field, "the data: URL is empty")
    if max_bytes is not None and len(text) // 4 * 3 > max_bytes + 3:
        raise _fault(field, f"has about {len(text) // 4 * 3} bytes; at most {max_bytes} are allowed")
    bare = len(text.rstrip(b"="))
    padding = len(text) - bare
    if strange and strange <= set(b"-_"):
        raise _fault(field, "the base64 data use the URL-safe alphabet ('-', '_'); use '+' and '/'")
    if strange or text.count(b"=") != padding:
        first = quoted(bytes(sorted(strange)[:1] or b"=").decode("latin-1"))
        raise _fault(
            field,
            f"the base64 data hold {first}; only letters, digits, '+' and '/' may stand there, and '=' at the end",
        )
    if bare % 4 == 1 or padding > 2 or (padding and len(text) % 4) or not bare:
        raise _fault(field, "the base64 data are cut off or wrongly padded")
    text += b"=" * (-len(text) % 4)
    out = bytearray()
    for start in range(0, len(text), _PIECE):
        out += binascii.a2b_base64(text[start : start + _PIECE])
    return bytes(out)


def _without_blanks(data: str) -> tuple[bytearray, set[int]]:
    """(the text without blanks and line breaks, the bytes in it that are not base64)."""
    text, strange = bytearray(), set[int]()
    for start in range(0, len(data), _PIECE):
        piece = data[start : start + _PIECE].encode("utf-8", "replace").translate(None, b" \t\r\n")
        strange.update(piece.translate(None, _ALPHABET))
        text += piece
    return text, strange


def _fault(field: str, message: str) -> RequestError:
    return RequestError(f"{field}: {message}", field=field)


def data_url(data: bytes, kind: str = "png") -> str:
    """A picture file's bytes as a ``data:`` URL."""
    return f"data:image/{kind.lower()};base64,{base64.b64encode(data).decode()}"
