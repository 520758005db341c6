"""API keys: who may ask. Every address but the probes wants one, addresses that are not there too.

A key comes as ``Authorization: Bearer KEY``, as OpenAI's clients send it, or as ``x-api-key: KEY``, as Anthropic's do.
No key, and nothing that was sent in one's place, is ever part of a message or of the log.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256

from quart import Quart, Request, Response, request

from luce.errors import RequestError
from luce.http.errors import error_response
from luce.http.request_log import PROBES

__all__ = ["ApiKeys", "install_keys"]


class ApiKeys:
    """The keys that are taken, as digests.

    Args:
        keys: of visible ASCII characters.
    """

    def __init__(self, keys: Sequence[str]) -> None:
        self._digests = tuple(_digest(key) for key in keys)

    def __len__(self) -> int:
        return len(self._digests)

    def hold(self, given: str) -> bool:
        """Is it one of the keys? Takes the same time whichever it is and however much of one it begins with."""
        digest = _digest(given)
        found = False
        for known in self._digests:
            found |= hmac.compare_digest(known, digest)
        return found


def install_keys(app: Quart, keys: ApiKeys, is_open: Callable[[str], bool]) -> None:
    """Answer 401 to requests without a key, before anything of them is read. Without keys everybody may ask.

    Args:
        is_open: may anybody ask for this path, as for the probes?
    """
    if not len(keys):
        return

    @app.before_request
    async def check() -> Response | None:
        if request.path in PROBES or is_open(request.path):
            return None
        given = list(_given(request._get_current_object()))  # type: ignore[attr-defined]
        if any(keys.hold(one) for one in given):
            return None
        fault = "the API key is not one that this server knows" if given else "an API key is needed"
        response = error_response(
            RequestError(
                f"{fault}; send it as 'Authorization: Bearer KEY' or as 'x-api-key: KEY'",
                status=401,
                code="invalid_api_key",
            )
        )
        response.headers["WWW-Authenticate"] = 'Bearer realm="luce"'
        return response


def _given(request: Request) -> Iterator[str]:
    """What a request shows: an SDK may send both headers, and one of them be of another service."""
    for header in request.headers.getlist("Authorization"):
        scheme, _, key = header.strip().partition(" ")
        if scheme.lower() == "bearer":
            yield key.strip()
    for header in request.headers.getlist("X-Api-Key"):
        yield header.strip()


def _digest(key: str) -> bytes:
    """Of one length, so that comparing tells nothing about a key's."""
    return sha256(key.encode("utf-8", "surrogatepass")).digest()
