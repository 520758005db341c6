"""The page's own files. They hold nothing of what the server does, so that nobody needs a key to get them; what they
show they ask for with one."""

from __future__ import annotations

import functools
import mimetypes
from hashlib import sha256
from pathlib import Path

from quart import Response, request

from luce.errors import RequestError, shown_name

__all__ = ["STATIC", "is_page_file", "page_file"]

STATIC = Path(__file__).parent / "static"
POLICY = (
    "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""The page talks to this server alone. Graphviz comes as WebAssembly within its file."""
_TYPES = {".js": "text/javascript", ".mjs": "text/javascript", ".svg": "image/svg+xml"}
"""Not left to what a machine's own tables say."""


def is_page_file(path: str) -> bool:
    """Is this the address of the page, or of one of its files?"""
    return path in ("/ui", "/ui/") or path.startswith("/ui/static/")


@functools.lru_cache(maxsize=64)
def _read(name: str) -> tuple[bytes, str, str]:
    path = STATIC / name
    content = path.read_bytes()
    kind = _TYPES.get(path.suffix) or mimetypes.guess_type(name)[0] or "application/octet-stream"
    return content, kind, sha256(content).hexdigest()[:24]


@functools.cache
def _names() -> frozenset[str]:
    return frozenset(path.relative_to(STATIC).as_posix() for path in STATIC.rglob("*") if path.is_file())


def page_file(name: str) -> Response:
    """One file of the page.

    Raises:
        RequestError: there is none of this name.
    """
    if name not in _names():
        raise RequestError(f"the page has no file {shown_name(name)}", status=404, code="not_found")
    content, kind, digest = _read(name)
    tag = f'"{digest}"'
    unchanged = request.headers.get("If-None-Match") == tag
    response = Response(b"" if unchanged else content, 304 if unchanged else 200, content_type=kind)
    response.headers["ETag"] = tag
    response.headers["Cache-Control"] = "no-cache"
    response.headers["Content-Security-Policy"] = POLICY
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers["Referrer-Policy"] = "no-referrer"
    return response
