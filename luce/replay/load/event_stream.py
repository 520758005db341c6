"""Server-sent events as the HTML standard has them, taken apart while their bytes come."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import attrs

__all__ = ["Event", "EventStream"]

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_LINE_END = re.compile(rb"\r\n|\r|\n")


@attrs.frozen
class Event:
    name: bytes
    """Empty where the stream says none."""
    data: bytes
    """Its lines are joined by line ends."""


class EventStream:
    """Lines end with CR, LF or both, events with an empty line or the stream itself."""

    def __init__(self) -> None:
        self._rest = b""
        self._after_cr = False
        self._begun = False
        self._name = b""
        self._data: Final[list[bytes]] = []
        self._size = 0

    @property
    def held(self) -> int:
        """Bytes of the event that is not over, and its lines."""
        return len(self._rest) + self._size

    def take(self, data: bytes) -> Iterator[Event]:
        """More of it: the events that are over with that."""
        if self._after_cr and data:
            data = data.removeprefix(b"\n")
        self._after_cr = data.endswith(b"\r")
        *lines, self._rest = _LINE_END.split(self._rest + data)
        for line in lines:
            yield from self._line(line)

    def end(self) -> Iterator[Event]:
        """It is over: the event whose last line end or empty line is missing, as some servers end."""
        for line in (self._rest, b""):
            yield from self._line(line)
        self._rest = b""

    def _line(self, line: bytes) -> Iterator[Event]:
        if not self._begun:
            self._begun, line = True, line.removeprefix(BYTE_ORDER_MARK)
        if not line:
            if self._data:
                yield Event(self._name, b"\n".join(self._data))
            self._name, self._size = b"", 0
            self._data.clear()
            return
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._data.append(value)
            self._size += len(value) + 1
        elif field == b"event":
            self._name = value
