"""What an operator may set about the HTTP side."""

from __future__ import annotations

import ssl

import attrs

from luce.http.image_sources.options import ImageSourceOptions

__all__ = ["HttpOptions"]

MIB = 1 << 20


@attrs.frozen
class HttpOptions:
    """Options of the HTTP front. Immutable; validated where the flags are read."""

    host: str = "127.0.0.1"
    port: int = 8000
    aliases: tuple[str, ...] = ()
    """More model names that requests may use, beside the served one."""
    api_keys: tuple[str, ...] = attrs.field(default=(), repr=False)
    """Keys of which every request but a probe must show one; none for an open server. Never shown."""
    ui: bool = True
    """Serve the page at /ui."""
    cors_origins: tuple[str, ...] = ()
    """Origins of web pages that browsers may let ask, or ``*``; none by default."""
    tls: ssl.SSLContext | None = attrs.field(default=None, repr=False)
    """What the connections speak TLS with; None for plain HTTP."""
    max_connections: int = 1024
    """At once; one more is refused with 503, or closed if it speaks TLS."""
    max_streams: int = 100
    """Requests at once on one HTTP/2 connection; more are refused by a reset that says that they were not begun."""
    head_timeout: float = 20.0
    """Seconds that a TLS handshake may take, and the head of a request from its first byte to its last."""
    max_body_bytes: int = 64 * MIB
    """Largest request body; one more byte is refused with 413."""
    max_buffered_bytes: int = 256 * MIB
    """Bytes of bodies held at once over all requests, until each is prepared; one more is refused with 503. Not less
    than the largest body."""
    max_choices: int = 8
    """Answers that one request may ask for with ``n``."""
    max_images: int = 16
    """Pictures in one request, over all its messages."""
    max_image_bytes: int = 20 * MIB
    """Largest picture file, after base64."""
    max_total_pixels: int = 200_000_000
    """Pixels of all pictures of a request together: each costs time to decode."""
    image_sources: ImageSourceOptions = attrs.field(factory=ImageSourceOptions)
    """Where pictures may come from that are not in the request itself."""
    body_timeout: float = 60.0
    """Seconds that a request body may take to arrive; then 408."""
    keep_alive: float = 5.0
    """Seconds of silence after which a stream gets a comment line, so that proxies keep it open."""
    idle_timeout: float = 75.0
    """Seconds that an idle connection is kept."""
    stalled_timeout: float = 60.0
    """Seconds that a client may leave its socket unread before the connection is cut, or grant no window before the
    stream is reset."""
    preparing: int = 2
    """Requests whose pictures and prompts are being prepared at once, each on its own worker thread."""
    abort_grace: float = 1.0
    """Seconds after a second stop signal in which clients get their error event and the server may end in order."""
    exit_grace: float = 3.0
    """Seconds that connections get to end after the last answer, when the server stops."""
