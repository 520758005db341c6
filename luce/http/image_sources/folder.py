"""Picture files below one folder, for ``file:`` URLs.

The path is walked from the folder's own descriptor, one name at a time and without following links, so that neither
``..`` nor a link, nor a folder that is exchanged for a link while it is walked, leads out of it.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from urllib.parse import unquote_to_bytes

from luce.errors import RequestError

__all__ = ["read_picture_file"]

MAX_URL = 8192
_URL = re.compile(r"file:(?://(?:localhost)?)?(/[^?#]*)", re.IGNORECASE)
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC


def read_picture_file(url: str, folder: Path, *, field: str, max_bytes: int) -> bytes:
    """A regular file below ``folder``. Blocks.

    Raises:
        RequestError: there is none, or it is too large; names ``field``. Says no more about what else there is.
    """
    try:
        names = _names_below(url, folder)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        for name in names[:-1]:
            descriptor = _step(descriptor, name, os.O_DIRECTORY)
        descriptor = _step(descriptor, names[-1], os.O_NONBLOCK | os.O_NOCTTY)  # a pipe must not block
        with open(descriptor, "rb", buffering=0) as file:  # noqa: PTH123 - a descriptor has no path
            regular = stat.S_ISREG(os.fstat(descriptor).st_mode)
            data = _read(file.fileno(), max_bytes + 1) if regular else None
    except (OSError, ValueError):
        data = None
    if data is None:
        raise RequestError(
            f"{field}: there is no such file below the folder that this server reads pictures from (--image-folder)",
            field=field,
        )
    if len(data) > max_bytes:
        raise RequestError(
            f"{field}: the file is too large; at most {max_bytes} bytes are taken", field=field
        )
    return data


def _names_below(url: str, folder: Path) -> list[bytes]:
    """The names between the folder and the file.

    Raises:
        ValueError: the URL is malformed, or its path does not begin with the folder's.
    """
    match = _URL.fullmatch(url) if len(url) <= MAX_URL else None
    if match is None:
        raise ValueError
    path = unquote_to_bytes(match[1])
    for root in (folder, folder.resolve()):
        prefix = os.fsencode(root).rstrip(b"/") + b"/"
        if path.startswith(prefix):
            names = path.removeprefix(prefix).split(b"/")
            if all(name not in (b"", b".", b"..") and b"\0" not in name for name in names):
                return names
    raise ValueError


def _step(descriptor: int, name: bytes, flags: int) -> int:
    """Open ``name`` in an open folder, which is closed."""
    try:
        return os.open(name, _FLAGS | flags, dir_fd=descriptor)
    finally:
        os.close(descriptor)


def _read(descriptor: int, most: int) -> bytes:
    pieces, left = [], most
    while left > 0 and (piece := os.read(descriptor, min(left, 1 << 20))):
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)
