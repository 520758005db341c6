"""Flags that say who may ask: API keys and origins of web pages."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from luce.cli.inputs import read_file
from luce.errors import ConfigError, quoted, reason
from luce.http.cors import ANY_ORIGIN

__all__ = ["origins", "read_keys"]

MAX_BYTES = 1 << 20
"""Of a file of keys."""

_KEY = re.compile(r"[\x21-\x7e]{1,512}")
_HOST = re.compile(r"[a-z0-9._-]+|\[[0-9a-f:.]+\]", re.ASCII)
_PORTS = {"http": 80, "https": 443}


def read_keys(given: Sequence[str], path: Path | None) -> tuple[str, ...]:
    """The keys of ``--api-key`` and of the file, without doubles.

    Raises:
        ConfigError: one cannot be a key, or the file cannot be read or holds none; says which one by its place, and
            never quotes it.
    """
    keys = []
    for number, key in enumerate(given, 1):
        if not _KEY.fullmatch(key):
            raise ConfigError(f"key {number} {_WANTED}", flag="--api-key")
        keys.append(key)
    if path is not None:
        keys += _of_file(path)
    return tuple(dict.fromkeys(keys))


_WANTED = "is no key: it must be 1 to 512 visible ASCII characters without spaces"


def _of_file(path: Path) -> Iterator[str]:
    try:
        lines = read_file(path, MAX_BYTES).decode().splitlines()
    except UnicodeDecodeError:  # whose message would quote it
        raise ConfigError(f"{path} is not UTF-8", flag="--api-key-file") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: {reason(error)}", flag="--api-key-file") from None
    found = 0
    for number, line in enumerate(lines, 1):
        key = line.strip()
        if not key or key.startswith("#"):
            continue
        if not _KEY.fullmatch(key):
            raise ConfigError(f"{path}: line {number} {_WANTED}", flag="--api-key-file")
        found += 1
        yield key
    if not found:  # or the server would be open to everybody
        raise ConfigError(f"{path} holds no key; give one a line", flag="--api-key-file")


def origins(given: Sequence[str]) -> tuple[str, ...]:
    """Origins as browsers send them: scheme, host in small letters, and a port that is not the scheme's own.

    Raises:
        ConfigError: one is neither an origin nor ``*``, or there are others beside ``*``.
    """
    if ANY_ORIGIN in given and len(given) > 1:
        raise ConfigError(f"{ANY_ORIGIN} lets every page ask; name no others beside it", flag="--cors-origin")
    return tuple(one if one == ANY_ORIGIN else _origin(one) for one in given)


def _origin(text: str) -> str:
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    host = parts.netloc.lower()
    if port is not None:
        host = host.removesuffix(f":{port}")
    if parts.scheme not in _PORTS or not _HOST.fullmatch(host) or parts.path not in ("", "/") or "?" in text:
        raise ConfigError(
            f"{quoted(text)} is no origin; write it as https://chat.example.org or http://localhost:3000, or * for all",
            flag="--cors-origin",
        )
    shown = "" if port is None or port == _PORTS[parts.scheme] else f":{port}"
    return f"{parts.scheme}://{host}{shown}"
