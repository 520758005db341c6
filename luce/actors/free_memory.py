"""The one thing that actors read of the machine while they serve: how much memory it has left.

It decides who can be saved under pressure, and so what is planned. Whoever serves a recorded day again, or simulates
one, gives the answers in the machine's place; every answer is a record of the event stream.
"""

from __future__ import annotations

from typing import Protocol

from luce.compute.host_memory import available_bytes
from luce.trace.events import EventStream

__all__ = ["FreeMemory", "machine_memory", "recorded"]


class FreeMemory(Protocol):
    """Bytes that may still be taken, or None where the system does not say.

    Args:
        use: what for: "park", "prefix" or "image". The same question again may have another answer.
    """

    def __call__(self, use: str) -> int | None: ...


def machine_memory(use: str) -> int | None:
    """Of this machine, or of the container that it is."""
    return available_bytes()


def recorded(free: FreeMemory, events: EventStream) -> FreeMemory:
    """The same, with every answer in the event stream, in the order in which they were given."""

    def ask(use: str) -> int | None:
        found = free(use)
        events.read("memory", use, found)
        return found

    return ask
