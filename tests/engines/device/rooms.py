"""What an engine makes of the memory that it asks a device for at once."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from luce.compute.device import Device

__all__ = ["watch_rooms"]


def watch_rooms(device: Device, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, list[int]]]:
    """(size, bytes of each array made within) of every room from now on."""
    rooms: list[tuple[int, list[int]]] = []
    made = threading.local()  # another thread's arrays come from elsewhere
    kind = type(device)
    room = kind.room

    @contextlib.contextmanager
    def watched(self: Any, num_bytes: int) -> Iterator[None]:
        taken: list[int] = []
        rooms.append((num_bytes, taken))
        made.within, made.inner = taken, False
        try:
            with room(self, num_bytes):
                yield
        finally:
            made.within = None

    def noting(name: str, *, counts: bool) -> None:
        plain = getattr(kind, name)

        def call(self: Any, *args: Any) -> Any:
            outermost = not getattr(made, "inner", False)
            if outermost:
                made.inner = True
            try:
                array = plain(self, *args)
            finally:
                if outermost:
                    made.inner = False
            taken = getattr(made, "within", None)
            if outermost and counts and taken is not None:
                taken.append(int(array.nbytes))
            return array

        monkeypatch.setattr(kind, name, call)

    monkeypatch.setattr(kind, "room", watched)
    for name in ("empty", "zeros", "array"):
        noting(name, counts=True)
    noting("passing", counts=False)
    return rooms
