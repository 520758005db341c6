"""What an operator may set about where pictures come from. Nothing is fetched and no file is read unless told to."""

from __future__ import annotations

from pathlib import Path

import attrs

from luce.http.image_sources.hosts import HostRule

__all__ = ["ImageSourceOptions"]

MIB = 1 << 20


@attrs.frozen
class ImageSourceOptions:
    """Immutable; validated where the flags are read."""

    hosts: tuple[HostRule, ...] = ()
    """Hosts that http and https URLs may name; none: nothing is fetched."""
    private: bool = False
    """Also addresses of the own machine and of private networks."""
    timeout: float = 10.0
    """Seconds for all pictures of a request together: names, connections, redirects and bytes."""
    connections: int = 16
    """Pictures that are fetched at once, over all requests."""
    folder: Path | None = None
    """Folder below which ``file:`` URLs may point; None: no file is read."""
    max_total_bytes: int = 64 * MIB
    """Of all pictures of a request together."""

    @property
    def schemes(self) -> tuple[str, ...]:
        """Of URLs that requests may name pictures by."""
        remote = ("http", "https") if self.hosts else ()
        return ("data", *remote, *(("file",) if self.folder is not None else ()))
