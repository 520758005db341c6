"""Pictures of a request, counted and bounded before anything is fetched or decoded.

A request is prepared on a worker thread, and pictures are fetched by the task that waits for it: preparing stops at the
first picture that is not in the request, with :class:`PicturesElsewhere`, and begins again when all of those are there
(:func:`with_pictures`). So nothing is fetched for a request that is refused anyway, and no worker waits for a network.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from luce.errors import RequestError
from luce.http.image_sources.sources import refuse_source
from luce.http.options import HttpOptions
from luce.text.messages import ImageReference
from luce.vision.data_url import parse_data_url, scheme_of
from luce.vision.header import HeaderError, image_header

__all__ = ["PicturesElsewhere", "picture_bytes", "refuse_many_pixels", "with_pictures"]

DETAILS = ("auto", "high", "original")

_loaded: ContextVar[Mapping[str, bytes] | None] = ContextVar("luce.loaded_pictures", default=None)
"""By URL: those that were loaded for the request that is being prepared."""


class PicturesElsewhere(Exception):  # noqa: N818 - a request, not a fault
    """Preparing goes on when these have been loaded."""

    def __init__(self, references: Sequence[ImageReference], timeout: float | None) -> None:
        super().__init__()
        self.references = references
        self.timeout = timeout
        """As the request asks for: seconds from its arrival until its answer is complete."""


@contextmanager
def with_pictures(loaded: Mapping[str, bytes]) -> Iterator[None]:
    """Preparing within the block has these pictures."""
    token = _loaded.set(loaded)
    try:
        yield
    finally:
        _loaded.reset(token)


def picture_bytes(
    images: Sequence[ImageReference], options: HttpOptions, timeout: float | None
) -> list[bytes]:
    """The picture files of a request, in order, within the limits on their number and bytes.

    Raises:
        RequestError: there are too many, one asks for a reduced ``detail``, comes from where nothing is taken from, or
            is no `data:` URL of at most ``max_image_bytes`` bytes; or all together are too large.
        PicturesElsewhere: some are to be loaded first.
    """
    if len(images) > options.max_images:
        raise RequestError(
            f"the request holds {len(images)} pictures; at most {options.max_images} are taken in one request",
            field="messages",
            code="too_many_images",
        )
    for image in images:
        _check_detail(image)
        refuse_source(image, options.image_sources)
    loaded = _loaded.get()
    elsewhere = [image for image in images if scheme_of(image.url or "") != "data"]
    if elsewhere and loaded is None:
        raise PicturesElsewhere(elsewhere, timeout)
    found = []
    left = most = options.image_sources.max_total_bytes
    for image in images:
        url = image.url or ""
        if loaded is not None and url in loaded:
            data = loaded[url]
        else:
            data = parse_data_url(url, field=image.field, max_bytes=options.max_image_bytes)
        left -= len(data)
        if left < 0:
            raise _too_large(image.field, f"have more than {most} bytes together")
        found.append(data)
    return found


def refuse_many_pixels(images: Sequence[ImageReference], files: Sequence[bytes], most: int) -> None:
    """Hold all pictures of a request together against ``most`` pixels; each alone is within its own limits.

    Raises:
        RequestError: names the first that is one too many.
    """
    pixels = 0
    for image, data in zip(images, files, strict=True):
        pixels += _pixels(data)
        if pixels > most:
            raise _too_large(image.field, f"have more than {most} pixels together")


def _check_detail(image: ImageReference) -> None:
    if image.detail is not None and image.detail not in DETAILS:
        field = f"{image.field.removesuffix('.url')}.detail"
        raise RequestError(
            f"{field}: pictures are always read at full size; use one of {', '.join(DETAILS)}",
            field=field,
            code="unsupported_value",
        )


def _pixels(data: bytes) -> int:
    """By the header. What is no picture counts nothing here and is refused in its turn."""
    try:
        _, width, height = image_header(data)
    except HeaderError:
        return 0
    return width * height


def _too_large(field: str, said: str) -> RequestError:
    return RequestError(
        f"{field}: with this one the pictures of the request {said}; send fewer or smaller ones", field=field
    )
