"""What is said about an address that is not there, or not for this method: what this server has instead."""

from __future__ import annotations

from quart import Quart, Response, request
from werkzeug.exceptions import MethodNotAllowed, NotFound

from luce.errors import quoted, shown_name
from luce.http.errors import error_response
from luce.http.json_types import listed
from luce.http.route_names import address

__all__ = ["addresses", "install_address_errors"]

UNSERVED = (
    "/v1/audio",
    "/v1/batches",
    "/v1/embeddings",
    "/v1/files",
    "/v1/images",
    "/v1/messages/batches",
    "/v1/moderations",
    "/v1/rerank",
    "/v1/responses",
)
"""Addresses of the APIs that clients of this one also know, with all that is under them."""

_IMPLIED = {"HEAD", "OPTIONS"}


def install_address_errors(app: Quart) -> None:
    """Answer 404 and 405 with the addresses and methods that there are."""

    async def not_found(error: NotFound) -> Response:
        path = request.path
        if any(path == one or path.startswith(f"{one}/") for one in UNSERVED):
            fault = f"{shown_name(path)} is not served yet"
        else:
            fault = f"there is nothing at {quoted(path)}"
        error.description = f"{fault}; this server has {', '.join(addresses(app))}"
        return error_response(error)

    async def wrong_method(error: MethodNotAllowed) -> Response:
        methods = sorted(set(error.valid_methods or ()) - _IMPLIED)
        error.description = (
            f"{shown_name(request.path)} takes {listed(methods)}, not {shown_name(request.method)}"
        )
        return error_response(error)

    app.register_error_handler(NotFound, not_found)
    app.register_error_handler(MethodNotAllowed, wrong_method)


def addresses(app: Quart) -> list[str]:
    """`GET /v1/models` and so on, in the order in which they were installed."""
    return [
        " ".join((listed(sorted((rule.methods or set()) - _IMPLIED)), address(rule.rule)))
        for rule in app.url_map.iter_rules()
        if not rule.rule.startswith("/ui/")  # what the page at /ui asks for
    ]
