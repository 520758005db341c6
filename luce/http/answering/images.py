"""Pictures of a request, counted and bounded before anything is decoded."""

from __future__ import annotations

from collections.abc import Sequence

from luce.errors import RequestError
from luce.text.messages import ImageReference
from luce.vision.data_url import parse_data_url

__all__ = ["picture_bytes"]

DETAILS = ("auto", "high", "original")


def picture_bytes(images: Sequence[ImageReference], max_images: int, max_bytes: int) -> list[bytes]:
    """The picture files of a request, in order.

    Raises:
        RequestError: there are more than ``max_images``, one asks for a reduced ``detail``, or an address is no
            `data:` URL of at most ``max_bytes`` bytes.
    """
    if len(images) > max_images:
        raise RequestError(
            f"the messages hold {len(images)} pictures; at most {max_images} are taken in one request",
            field="messages",
            code="too_many_images",
        )
    for image in images:
        if image.detail is not None and image.detail not in DETAILS:
            field = f"{image.field.removesuffix('.url')}.detail"
            raise RequestError(
                f"{field}: pictures are always read at full size; use one of {', '.join(DETAILS)}",
                field=field,
                code="unsupported_value",
            )
    return [parse_data_url(image.url or "", field=image.field, max_bytes=max_bytes) for image in images]
