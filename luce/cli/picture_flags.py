"""Flags about pictures: how many and how large, and where they may come from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import attrs
from cyclopts import Group, Parameter

from luce.cli.flags import COUNT, FILE, NAME, SECONDS, SIZE, whole
from luce.engines.load_model import LoadOptions
from luce.errors import ConfigError, quoted
from luce.http.image_sources.hosts import HostRule, UrlError, parse_host_rule
from luce.http.image_sources.options import ImageSourceOptions
from luce.http.options import HttpOptions

__all__ = ["PictureFlags"]

PICTURES = Group("Pictures", sort_key=6)

HTTP_DEFAULTS = HttpOptions()
SOURCE_DEFAULTS = ImageSourceOptions()


@Parameter(name="*")
@attrs.frozen
class PictureFlags:
    max_images: Annotated[int, whole(0), Parameter(group=PICTURES, help="Pictures in one request.")] = (
        HTTP_DEFAULTS.max_images
    )
    max_image: Annotated[int, SIZE, Parameter(group=PICTURES, help="Largest picture file.")] = (
        HTTP_DEFAULTS.max_image_bytes
    )
    max_total_image: Annotated[
        int, SIZE, Parameter(group=PICTURES, help="Picture files of one request together.")
    ] = SOURCE_DEFAULTS.max_total_bytes
    max_image_pixels: Annotated[
        int | None,
        COUNT,
        Parameter(
            group=PICTURES,
            help="Pixels of a picture, width times height; decoding takes up to 16 bytes for each, and that is in the "
            "memory plan; by default 50,000,000, or what a quarter of the free memory has room for.",
        ),
    ] = None
    max_total_pixels: Annotated[
        int, COUNT, Parameter(group=PICTURES, help="Pixels of all pictures of one request together.")
    ] = HTTP_DEFAULTS.max_total_pixels
    fetch_images: Annotated[
        bool,
        Parameter(
            group=PICTURES,
            negative="",
            help="Fetch pictures that requests name by http and https URLs, from the hosts of --image-host.",
        ),
    ] = False
    image_host: Annotated[
        tuple[str, ...],
        NAME,
        Parameter(
            group=PICTURES,
            negative="",
            help="Host that pictures may be fetched from, as images.example.org, *.example.org for its subdomains, or "
            "* for all; with a port, as images.example.org:8443, if it is not 80 or 443; can be repeated.",
        ),
    ] = ()
    fetch_private: Annotated[
        bool,
        Parameter(
            group=PICTURES,
            negative="",
            help="Fetch from such hosts also where they have addresses of this machine or of private networks.",
        ),
    ] = False
    fetch_timeout: Annotated[
        float,
        SECONDS,
        Parameter(group=PICTURES, help="Seconds for fetching all pictures of a request."),
    ] = SOURCE_DEFAULTS.timeout
    image_folder: Annotated[
        Path | None,
        FILE,
        Parameter(group=PICTURES, help="Folder below which requests may name picture files by file: URLs."),
    ] = None

    def http(self, options: HttpOptions) -> HttpOptions:
        """The same with these flags. Raises ConfigError for what is no host or folder, and for what has no effect."""
        if self.max_total_image < self.max_image:
            raise ConfigError(
                f"{self.max_total_image} bytes do not hold the largest picture; give at least --max-image, "
                f"{self.max_image}, or lower that",
                flag="--max-total-image",
            )
        return attrs.evolve(
            options,
            max_images=self.max_images,
            max_image_bytes=self.max_image,
            max_total_pixels=self.max_total_pixels,
            image_sources=ImageSourceOptions(
                hosts=self._hosts(),
                private=self.fetch_private,
                timeout=self.fetch_timeout,
                folder=_folder(self.image_folder),
                max_total_bytes=self.max_total_image,
            ),
        )

    def load(self, options: LoadOptions, workers: int) -> LoadOptions:
        """The same with these flags; ``workers`` decode pictures at once."""
        return attrs.evolve(
            options,
            max_image_bytes=self.max_image,
            max_image_pixels=self.max_image_pixels,
            decoding_workers=workers,
        )

    def _hosts(self) -> tuple[HostRule, ...]:
        if self.fetch_images and not self.image_host:
            raise ConfigError(
                "name the hosts that pictures may come from with --image-host, or give --image-host '*' for all",
                flag="--fetch-images",
            )
        if not self.fetch_images:
            for flag, given in (("--image-host", self.image_host), ("--fetch-private", self.fetch_private)):
                if given:
                    raise ConfigError("nothing is fetched without --fetch-images", flag=flag)
        return _rules(self.image_host)


def _rules(given: Sequence[str]) -> tuple[HostRule, ...]:
    rules = []
    for text in given:
        try:
            rules.append(parse_host_rule(text))
        except UrlError as error:
            raise ConfigError(f"{quoted(text)} is no host; {error}", flag="--image-host") from None
    return tuple(dict.fromkeys(rules))


def _folder(path: Path | None) -> Path | None:
    if path is None:
        return None
    found = path.absolute()
    if not found.is_dir():
        raise ConfigError(f"{path} is no folder", flag="--image-folder")
    return found
