"""Where pictures come from that are not in the request itself: references in, bytes out, whatever the API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import trio

from luce.errors import LuceError, RequestError
from luce.http.held_bodies import HeldBody
from luce.http.image_sources.fetch import Fetcher, FetchError, Take
from luce.http.image_sources.folder import read_picture_file
from luce.http.image_sources.options import ImageSourceOptions
from luce.text.messages import ImageReference
from luce.vision.data_url import scheme_of

__all__ = ["ImageSources", "refuse_source"]

_ALLOWED = "its operator can allow it"
_ADVICE = "send the picture as data:image/png;base64,…"


def refuse_source(reference: ImageReference, options: ImageSourceOptions) -> None:
    """Refuse a reference whose kind of URL this server takes no pictures from.

    Raises:
        RequestError: says what it takes.
    """
    scheme = scheme_of(reference.url or "")
    if scheme in options.schemes:
        return
    if scheme is None:
        said = "this is not a URL"
    elif scheme in ("http", "https"):
        said = f"{scheme}: URLs are not supported by this server, which fetches no pictures"
        said += f" ({_ALLOWED}: --fetch-images)"
    elif scheme == "file":
        said = f"file: URLs are not supported by this server, which reads no picture files ({_ALLOWED}: --image-folder)"
    else:
        said = f"{scheme}: URLs are not supported"
    raise RequestError(f"{reference.field}: {said}; {_ADVICE}", field=reference.field)


class ImageSources:
    """One for the server: all requests share its bound on connections.

    Args:
        max_bytes: of one picture.
    """

    def __init__(self, options: ImageSourceOptions, max_bytes: int, fetcher: Fetcher | None = None) -> None:
        self._options = options
        self._max_bytes = max_bytes
        self._fetcher = fetcher or Fetcher(options.hosts, options.private)
        self._connections = trio.CapacityLimiter(options.connections)

    async def load(self, references: Sequence[ImageReference], body: HeldBody) -> Mapping[str, bytes]:
        """The bytes of pictures by their URLs; one that is named twice is fetched once.

        Ends as soon as one cannot be had; the error is that of the first of those, in the request's order, that were
        known to fail by then.

        Args:
            references: with URLs of schemes that :func:`refuse_source` lets through, none of them ``data:``.
            body: of the request; the bytes are held with it, and count as its do.

        Raises:
            RequestError: a picture cannot be had, or all together are too large or take too long; names its field.
            CapacityError: the server holds too much for other requests.
        """
        first = {reference.url or "": reference for reference in reversed(references)}
        found: dict[str, bytes] = {}
        failed: dict[str, LuceError] = {}
        left = self._options.max_total_bytes

        def take(count: int) -> None:
            nonlocal left
            if count > left:
                raise FetchError(
                    f"the pictures of this request are too large together; at most {self._options.max_total_bytes} "
                    "bytes are taken"
                )
            body.take_more(count)
            left -= count

        async def load(url: str, field: str) -> None:
            try:
                async with self._connections:
                    found[url] = await self._one(url, field, take)
            except FetchError as error:
                failed[url] = RequestError(f"{field}: {error}; check the URL, or {_ADVICE}", field=field)
            except LuceError as error:
                failed[url] = error
            if failed:
                nursery.cancel_scope.cancel()

        with trio.move_on_after(self._options.timeout) as patience:
            async with trio.open_nursery() as nursery:
                for url, reference in first.items():
                    nursery.start_soon(load, url, reference.field)
        for reference in references:
            url = reference.url or ""
            if url in failed:
                raise failed[url]
        if patience.cancelled_caught or len(found) < len(first):
            late = next(reference for reference in references if reference.url not in found)
            raise RequestError(
                f"{late.field}: the picture was not there within {self._options.timeout:g} s; send the request again, "
                f"or {_ADVICE}",
                field=late.field,
            )
        return found

    async def _one(self, url: str, field: str, take: Take) -> bytes:
        if scheme_of(url) != "file":
            return await self._fetcher.fetch(url.strip(), self._max_bytes, take)
        assert self._options.folder is not None
        data = await trio.to_thread.run_sync(
            _read, url.strip(), self._options.folder, field, self._max_bytes, abandon_on_cancel=True
        )  # a file system that hangs must not hold the request up
        take(len(data))
        return data


def _read(url: str, folder: Path, field: str, max_bytes: int) -> bytes:
    return read_picture_file(url, folder, field=field, max_bytes=max_bytes)
