"""Which hosts pictures may be fetched from, and what a URL must look like for that."""

from __future__ import annotations

import re
from collections.abc import Sequence
from ipaddress import ip_address
from urllib.parse import quote

import attrs

__all__ = ["HostRule", "RemoteUrl", "UrlError", "parse_host_rule", "parse_remote_url"]

MAX_URL = 8192
"""Characters."""
PORTS = {"http": 80, "https": 443}

_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_URL = re.compile(r"(https?)://([^/?#]*)([^#]*)(?:#.*)?", re.IGNORECASE)
_AUTHORITY = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]]+)(?::([0-9]{1,5}))?")


class UrlError(ValueError):
    """Says what is wrong with a URL or a rule; quotes nothing but its host."""


@attrs.frozen
class RemoteUrl:
    scheme: str
    host: str
    """In small letters; an IPv6 address without its brackets."""
    port: int
    target: str = attrs.field(repr=False)
    """Path and query, percent-encoded. May hold a secret: never shown."""

    @property
    def authority(self) -> str:
        """As a Host header and messages have it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == PORTS[self.scheme] else f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}/…"


@attrs.frozen
class HostRule:
    """``example.org``, ``*.example.org`` (its subdomains, not itself) or ``*`` (every host), with a port or without."""

    name: str
    port: int | None = None
    """None: the scheme's own, 80 or 443."""

    def __str__(self) -> str:
        name = f"[{self.name}]" if ":" in self.name else self.name
        return name if self.port is None else f"{name}:{self.port}"

    def allows(self, url: RemoteUrl) -> bool:
        if url.port != (PORTS[url.scheme] if self.port is None else self.port):
            return False
        if self.name.startswith("*."):
            return url.host.endswith(self.name[1:]) and url.host != self.name[1:]
        return self.name in ("*", url.host)


def parse_host_rule(text: str) -> HostRule:
    """Raises UrlError."""
    wild = text.startswith("*.")
    match = _AUTHORITY.fullmatch(text.removeprefix("*.")) if text.isascii() else None
    if match is not None:
        port = _port(match[2])
        if match[1] == "*" and not wild:
            return HostRule("*", port)
        host = _host(match[1])
        if host is not None and not (wild and (_is_address(host) or "." not in host)):
            return HostRule(f"*.{host}" if wild else host, port)
    raise UrlError(
        "write it as images.example.org, *.example.org, images.example.org:8443, or * for every host"
    )


def parse_remote_url(text: str, rules: Sequence[HostRule]) -> RemoteUrl:
    """An http or https URL whose host is on the list.

    Raises:
        UrlError: it is malformed, names a user, or its host or port is not on the list.
    """
    if len(text) > MAX_URL:
        raise UrlError(f"the URL has {len(text)} characters; at most {MAX_URL} are taken")
    if any(character <= " " or character in "\\\x7f" for character in text):
        raise UrlError("the URL holds blanks, control characters or back-slashes; percent-encode them")
    match = _URL.fullmatch(text)
    if match is None:
        raise UrlError("this is no http or https URL")
    scheme, authority, target = match[1].lower(), match[2], match[3]
    if "@" in authority:
        raise UrlError("the URL names a user; leave out what stands before the @")
    parts = _AUTHORITY.fullmatch(authority) if authority.isascii() else None
    host = _host(parts[1]) if parts is not None else None
    if parts is None or host is None:
        raise UrlError("the URL has no valid host; names with other letters are written as xn--…")
    port = _port(parts[2])
    url = RemoteUrl(
        scheme=scheme,
        host=host,
        port=PORTS[scheme] if port is None else port,
        target=quote(
            target if target.startswith("/") else f"/{target}", safe="%/?:@!$&'()*+,;=-._~[]|^{}`\"<>"
        ),
    )
    if not any(rule.allows(url) for rule in rules):
        raise UrlError(f"this server fetches nothing from {url.authority}")
    return url


def _host(text: str) -> str | None:
    """A name or an address as it is compared; None if it is neither."""
    if text.startswith("["):
        return str(ip_address(text[1:-1])) if _is_address(text[1:-1]) else None
    host = text.lower().removesuffix(".")
    return host if len(host) <= 253 and _NAME.fullmatch(host) else None


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _port(text: str | None) -> int | None:
    if text is None:
        return None
    port = int(text)
    if not 1 <= port <= 65535:
        raise UrlError(f"there is no port {port}")
    return port
