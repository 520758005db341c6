"""Pictures in messages: `data:` URLs to bytes, counted and bounded before anything is decoded."""

from __future__ import annotations

import binascii
import re
from collections.abc import Sequence

import attrs

from luce.errors import RequestError
from luce.http.openai.chat_request import ImagePart, Message

__all__ = ["FoundImage", "decode_data_url", "find_images"]

_HEADER = re.compile(
    r"data:(?P<type>[\w.+-]+/[\w.+-]+)?(?P<params>(?:;[\w.+-]+=[^;,]*)*)(?P<base64>;base64)?,", re.I
)
_BLANKS = dict.fromkeys(map(ord, " \t\r\n"))
_HEADER_LIMIT = 256
DETAILS = ("auto", "high", "original")


@attrs.frozen
class FoundImage:
    field: str
    """Where it stands: ``messages[1].content[0].image_url.url``."""
    url: str


def find_images(messages: Sequence[Message], limit: int) -> list[FoundImage]:
    """Every picture in order.

    Raises:
        RequestError: there are more than ``limit``, or one asks for a reduced ``detail``.
    """
    found: list[FoundImage] = []
    for index, message in enumerate(messages):
        if not isinstance(message.content, list):
            continue
        for place, part in enumerate(message.content):
            if not isinstance(part, ImagePart):
                continue
            field = f"messages[{index}].content[{place}].image_url"
            detail = part.image_url.detail
            if detail is not None and detail not in DETAILS:
                raise RequestError(
                    f"{field}.detail: pictures are always read at full size; use one of {', '.join(DETAILS)}",
                    field=f"{field}.detail",
                    code="unsupported_value",
                )
            found.append(FoundImage(f"{field}.url", part.image_url.url))
    if len(found) > limit:
        raise RequestError(
            f"the messages hold {len(found)} pictures; at most {limit} are taken in one request",
            field="messages",
            code="too_many_images",
        )
    return found


def decode_data_url(image: FoundImage, limit: int) -> bytes:
    """The bytes of a picture.

    Raises:
        RequestError: not a base64 `data:` URL of an image, malformed base64, or more than ``limit`` bytes.
    """
    field, url = image.field, image.url
    if url[:5].lower() != "data:":
        scheme = url.split(":", 1)[0][:20] if ":" in url[:20] else None
        what = f"{scheme!r} addresses are" if scheme else "this is"
        raise RequestError(
            f"{field}: {what} not taken; send the picture as data:image/png;base64,…", field=field
        )
    header = _HEADER.match(url[:_HEADER_LIMIT])
    if header is None or header["base64"] is None:
        raise RequestError(f"{field}: expected data:image/…;base64,… with base64 data", field=field)
    if header["type"] is not None and not header["type"].lower().startswith("image/"):
        raise RequestError(f"{field}: {header['type']} is not a picture", field=field)
    text = url[header.end() :]
    if len(text) // 4 * 3 > limit + limit // 32:
        raise RequestError(f"{field}: the picture is larger than {limit} bytes", field=field)
    data = _decode_base64(field, text)
    if not data:
        raise RequestError(f"{field}: the picture is empty", field=field)
    if len(data) > limit:
        raise RequestError(f"{field}: the picture is larger than {limit} bytes", field=field)
    return data


def _decode_base64(field: str, text: str) -> bytes:
    """Strict, but for line breaks and blanks, which encoders of mail and shells put in."""
    try:
        return binascii.a2b_base64(text.encode("ascii"), strict_mode=True)
    except (binascii.Error, UnicodeEncodeError):
        pass
    try:
        return binascii.a2b_base64(text.translate(_BLANKS).encode("ascii"), strict_mode=True)
    except UnicodeEncodeError:
        raise RequestError(f"{field}: invalid base64: it holds other characters", field=field) from None
    except binascii.Error as error:
        raise RequestError(f"{field}: invalid base64: {error}", field=field) from None
