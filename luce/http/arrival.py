"""When a request's head arrived: the connection knows, the application asks."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

import trio
from quart.wrappers import Request

__all__ = ["arrival", "begin_at", "note_arrival"]

_KEY = "luce.arrival"
_BEGUN = "luce.begun"

State = MutableMapping[str, Any]
"""ASGI's, of a connection; each of its requests has a copy."""


def note_arrival(state: State, when: float) -> None:
    """What is read now was there at this time of trio's clock. A request whose head ends in it arrived then, or when
    its turn came, whichever is later."""
    state[_KEY] = max(when, state.get(_BEGUN, when))


def begin_at(state: State, when: float) -> None:
    """Until then there was another request's answer to wait for: the next one begins no earlier, whether its bytes were
    read before this or lay with the system."""
    state[_KEY] = state[_BEGUN] = when


def arrival(request: Request) -> float:
    """On trio's clock; now, if the connection has not said."""
    found: float = request.scope.get("state", {}).get(_KEY, trio.current_time())
    return found
