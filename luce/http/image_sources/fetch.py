"""One picture over HTTP: each hop checked, the connection pinned to an address that was checked, all of it bounded.

A plain HTTP/1.1 exchange, on `h11` alone: a client library would resolve the name again, obey proxies of the
environment, unpack compressed bodies and follow redirects by itself. Nothing of a URL but its host comes into messages
or the log.
"""

from __future__ import annotations

import errno
import logging
import os
import ssl
from collections.abc import Awaitable, Callable, Sequence
from urllib.parse import urljoin

import attrs
import h11
import trio

from luce.errors import LuceError
from luce.http.image_sources.hosts import HostRule, RemoteUrl, UrlError, parse_remote_url
from luce.http.image_sources.public_addresses import is_allowed

__all__ = ["FetchError", "Fetcher", "Resolve", "resolve"]

MAX_REDIRECTS = 3
MAX_ADDRESSES = 4
"""Of a name that are tried."""
MAX_HEAD = 64 * 1024
PIECE = 64 * 1024
_REDIRECTS = frozenset((301, 302, 303, 307, 308))
_HEADERS = (
    ("accept", "image/png, image/jpeg, image/webp, image/gif, image/bmp"),
    ("accept-encoding", "identity"),
    ("user-agent", "luce"),
    ("connection", "close"),
)

log = logging.getLogger("luce.http.images")

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""(host, port) to addresses. Raises OSError."""
Take = Callable[[int], None]
"""Told how many more bytes are about to be kept; raises when that is too many for now."""


class FetchError(LuceError):
    """A picture could not be fetched. Says why, and what to do."""


async def resolve(host: str, port: int) -> list[str]:
    """All addresses of a name, in the system's order, by the system's resolver."""
    found = await trio.socket.getaddrinfo(host, port, type=trio.socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


@attrs.define(eq=False)
class Fetcher:
    """Fetches pictures from hosts on the list. One for the server; nothing of a request is kept."""

    rules: Sequence[HostRule]
    private: bool = False
    """Addresses of private networks may be connected to."""
    resolve: Resolve = resolve
    context: ssl.SSLContext | None = None
    """For https; None: certificates that the system trusts, read when first needed."""

    async def fetch(self, text: str, max_bytes: int, take: Take) -> bytes:
        """The bytes behind a URL, whatever their content type says. The caller bounds the time.

        Args:
            max_bytes: one more is refused, by the answer's head or as soon as it arrives.
            take: told of every piece before it is kept.

        Raises:
            FetchError: the URL, an address, a redirect or the answer is not what is taken.
        """
        for _ in range(MAX_REDIRECTS + 1):
            url = self._checked(text)
            try:
                found = await self._exchange(url, max_bytes, take)
            except (OSError, trio.BrokenResourceError, trio.ClosedResourceError) as error:
                raise FetchError(f"{url.authority} could not be reached{_why(error)}") from None
            except h11.RemoteProtocolError:
                raise FetchError(f"{url.authority} did not answer in whole HTTP messages") from None
            if isinstance(found, bytes):
                log.debug("fetched %d bytes from %s", len(found), url.authority)
                return found
            text = found.location
            if url.scheme == "https" and text[:5].lower() == "http:":
                raise FetchError(f"{url.authority} redirects from https to http")
        raise FetchError(f"{url.authority} redirects more than {MAX_REDIRECTS} times")

    def _checked(self, text: str) -> RemoteUrl:
        try:
            return parse_remote_url(text, self.rules)
        except UrlError as error:
            raise FetchError(f"{error}") from None

    async def _exchange(self, url: RemoteUrl, max_bytes: int, take: Take) -> bytes | _Redirect:
        stream = await self._connect(url)
        try:
            return await _get(stream, url, max_bytes, take)
        finally:
            await trio.aclose_forcefully(stream)

    async def _connect(self, url: RemoteUrl) -> trio.abc.Stream:
        """A connection to one of the addresses that were checked; the name is not asked for again."""
        addresses = await self.resolve(url.host, url.port)
        for address in addresses:
            if not is_allowed(address, private=self.private):
                raise FetchError(
                    f"{url.host} has an address that this server does not connect to (its own, of a private network, "
                    "or reserved)"
                )
        stream = await _open(addresses[:MAX_ADDRESSES], url.port)
        if url.scheme == "http":
            return stream
        secure = trio.SSLStream(
            stream, await self._trusted(), server_hostname=url.host, https_compatible=True
        )
        try:
            await secure.do_handshake()
        except BaseException:
            await trio.aclose_forcefully(stream)
            raise
        return secure

    async def _trusted(self) -> ssl.SSLContext:
        if self.context is None:
            self.context = await trio.to_thread.run_sync(ssl.create_default_context)
        return self.context


@attrs.frozen
class _Redirect:
    location: str = attrs.field(repr=False)


async def _open(addresses: Sequence[str], port: int) -> trio.SocketStream:
    failure = OSError(errno.EADDRNOTAVAIL, "no address")
    for address in addresses:
        family = trio.socket.AF_INET6 if ":" in address else trio.socket.AF_INET
        socket = trio.socket.socket(family, trio.socket.SOCK_STREAM)
        try:
            await socket.connect((address, port))
            return trio.SocketStream(socket)
        except OSError as error:
            socket.close()
            failure = error
        except BaseException:
            socket.close()
            raise
    raise failure


async def _get(stream: trio.abc.Stream, url: RemoteUrl, max_bytes: int, take: Take) -> bytes | _Redirect:
    wire = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD)
    request = h11.Request(method="GET", target=url.target, headers=[("host", url.authority), *_HEADERS])
    await stream.send_all(wire.send(request) or b"")
    wire.send(h11.EndOfMessage())
    pieces: list[bytes] = []
    size = 0
    while True:
        event = wire.next_event()
        if event is h11.NEED_DATA:
            wire.receive_data(bytes(await stream.receive_some(PIECE)))
        elif isinstance(event, h11.Response):
            location = _header(event, b"location")
            if event.status_code in _REDIRECTS and location:
                return _Redirect(_joined(url, location))
            _check_head(event, url, max_bytes)
        elif isinstance(event, h11.Data):
            size += len(event.data)
            if size > max_bytes:
                raise _too_large(url, max_bytes)
            take(len(event.data))
            pieces.append(bytes(event.data))
        elif isinstance(event, h11.EndOfMessage):
            return b"".join(pieces)
        elif isinstance(event, h11.ConnectionClosed):
            raise FetchError(f"{url.authority} closed the connection without an answer")


def _joined(url: RemoteUrl, location: str) -> str:
    """Where a redirect leads."""
    try:
        return urljoin(f"{url.scheme}://{url.authority}{url.target}", location)
    except ValueError:  # half an IPv6 address, for one
        raise FetchError(f"{url.authority} redirects to what is no URL") from None


def _check_head(response: h11.Response, url: RemoteUrl, max_bytes: int) -> None:
    if response.status_code != 200:
        raise FetchError(f"{url.authority} answered with status {response.status_code}")
    coding = _header(response, b"content-encoding", "identity").strip().lower()
    if coding not in ("", "identity"):
        raise FetchError(f"{url.authority} sends the picture compressed, although it was asked not to")
    if int(_header(response, b"content-length", "0")) > max_bytes:  # h11 has checked that it is a number
        raise _too_large(url, max_bytes)


def _too_large(url: RemoteUrl, max_bytes: int) -> FetchError:
    return FetchError(f"the picture at {url.authority} is too large; at most {max_bytes} bytes are taken")


def _header(response: h11.Response, name: bytes, absent: str = "") -> str:
    return next((value.decode("latin-1") for key, value in response.headers if key == name), absent)


def _why(error: Exception) -> str:
    if isinstance(error.__cause__ or error, ssl.SSLCertVerificationError):
        return ": its certificate is not trusted or not for this name"
    if isinstance(error.__cause__ or error, ssl.SSLError):
        return ": TLS failed"
    if not isinstance(error, OSError) or error.errno is None:
        return ""
    # trio's own words name the address, which is nobody's business; those of name resolution have negative numbers
    return f": {os.strerror(error.errno) if error.errno > 0 else error.strerror}"
