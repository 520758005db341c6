"""When a request's head arrived: the connection knows, the application asks."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

import trio
from quart.wrappers import Request

__all__ = ["arrival", "forget_arrival", "note_arrival"]

_KEY = "luce.arrival"

State = MutableMapping[str, Any]
"""ASGI's, of a connection; each of its requests has a copy."""


def note_arrival(state: State, when: float) -> None:
    """What is read now was there at this time of trio's clock. A request whose head ends in it arrived then."""
    state[_KEY] = when


def forget_arrival(state: State) -> None:
    """What was read waited for something else: requests in it begin when they are looked at."""
    state.pop(_KEY, None)


def arrival(request: Request) -> float:
    """On trio's clock; now, if the connection has not said."""
    found: float = request.scope.get("state", {}).get(_KEY, trio.current_time())
    return found
