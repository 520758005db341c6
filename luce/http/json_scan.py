"""A look over a JSON text before it is parsed: how much it holds, without building any of it.

msgspec builds the whole value in one call that holds the interpreter's lock, so a hostile body would stop every
running stream for as long as that takes. Here the text is walked from quote to quote, in steps that let other threads
run; one that is short and holds no picture is one step. Strings of pictures, which may be long, are stepped over at the
speed of memory; all other bytes are counted and bounded, so that little is left to parse.

Nothing is said about whether the text is JSON: that is the parser's.
"""

from __future__ import annotations

import re

import attrs

from luce.errors import RequestError

__all__ = ["MAX_DIGITS", "Limits", "Scan", "scan"]

MAX_DIGITS = 309
"""Of a whole number: the largest double has so many. Python's reader of integers is quadratic in them."""

_TOO_LONG = re.compile(rb"[0-9]{%d}" % (MAX_DIGITS + 1))
_CHARACTERS = re.compile(rb'(?:[^"\\]+|\\.)*+', re.DOTALL)
_STRING = re.compile(rb'"(?:[^"\\]+|\\.)*+(?:"|\\?\Z)', re.DOTALL)
"""A string to its closing quote, or to the end of a text that breaks off in it."""
_BACKSLASH = 0x5C
_PICTURE = re.compile(rb"\s{0,16}data:", re.IGNORECASE)
_PICTURE_NAME = re.compile(rb'"data"\s{0,16}:\s{0,16}\Z')
"""Before a picture of Anthropic's API, which is bare base64."""
_PICTURES = re.compile(rb'data:|"data"', re.IGNORECASE)
"""In every text that holds a picture."""
_PIECE = 1 << 16
"""Bytes that are worked on in one step."""


@attrs.frozen
class Limits:
    """What a text may hold at most."""

    values: int
    """Counted by brackets, braces and commas outside strings."""
    plain_bytes: int | None = None
    """Bytes beside the strings of pictures (``"data:…"``, and ``"…"`` of the name ``data``)."""
    plain_reason: str = ""
    """Why there may be no more of them, for the message."""


@attrs.frozen
class Scan:
    bare: bytes
    """The text with the strings of pictures emptied: the same JSON otherwise."""
    names: int
    """Names of members, counted by the colons outside strings."""
    long_number: bool
    """A whole number of over :data:`MAX_DIGITS` digits is there."""


def scan(data: bytes | bytearray, limits: Limits, what: str) -> Scan:
    """Walk over ``data``.

    Raises:
        RequestError: more than ``limits`` allow, named as ``what``.
    """
    most = len(data) if limits.plain_bytes is None else limits.plain_bytes
    walk, start = _Walk(limits, most, what), 0
    if len(data) <= min(most, _PIECE) and _PICTURES.search(data) is None:
        walk.take_whole(bytes(data))
        return walk.scan()
    while (quote := data.find(b'"', start)) >= 0:
        end, escaped = _end_of_string(data, quote + 1, most)
        picture = not escaped and end - quote > 256 and _is_picture(data, quote)
        walk.take(data, start, quote + 1)
        walk.bare += b'"' if picture else b""
        if not picture:
            walk.take(data, quote + 1, end, marked=False)
        start = end
    walk.take(data, start, len(data))
    return walk.scan()


def _is_picture(data: bytes | bytearray, quote: int) -> bool:
    """The string that begins here is a picture, by its own beginning or by its name."""
    named = _PICTURE_NAME.search(data, max(0, quote - 64), quote)
    return named is not None or _PICTURE.match(data, quote + 1) is not None


def _end_of_string(data: bytes | bytearray, start: int, most: int) -> tuple[int, bool]:
    """(the place behind the closing quote, whether a backslash stood before the first quote).

    A string with such backslashes is looked at no further than ``most`` bytes.
    """
    quote = data.find(b'"', start)
    if quote < 0:
        return len(data), False
    if quote == start or data[quote - 1] != _BACKSLASH:
        return quote + 1, False
    place = start
    while place < len(data) - 1 and place - start <= most:
        found = _CHARACTERS.match(data, place, place + _PIECE)
        assert found is not None
        place = found.end()
        if data[place : place + 1] == b'"':
            return place + 1, True
    return (place if place - start > most else len(data)), True


class _Walk:
    """What was counted so far. Checked piece by piece, so that a hostile text ends early."""

    def __init__(self, limits: Limits, most: int, what: str) -> None:
        self.bare = bytearray()
        self.names = 0
        self.long_number = False
        self._limits = limits
        self._most = most
        self._what = what
        self._marks = bytearray()
        """Text outside strings that is not counted yet, a quote for every string."""
        self._values = 0
        self._strings = 0

    def take(self, data: bytes | bytearray, start: int, end: int, *, marked: bool = True) -> None:
        """Take in a stretch: one outside strings, to the quote that opens one, or one within."""
        for place in range(start, end, _PIECE):
            piece = data[place : min(end, place + _PIECE)]
            self.bare += piece
            if marked:
                self._marks += piece
            if len(self._marks) >= _PIECE or len(self.bare) > self._most:
                self.check()

    def take_whole(self, data: bytes) -> None:
        """Take in a text of one piece that holds no picture."""
        self.bare += data
        self._marks += _STRING.sub(b'"', data)

    def scan(self) -> Scan:
        """What was found, when all is taken in."""
        self.check()
        return Scan(bytes(self.bare), self.names, self.long_number)

    def check(self) -> None:
        marks = self._marks
        self._values += sum(marks.count(mark) for mark in (b"[", b"{", b","))
        self._strings += marks.count(b'"')
        self.names += marks.count(b":")
        self.long_number = self.long_number or _TOO_LONG.search(marks) is not None
        # A number may go on behind the piece: its digits are kept, and hold nothing else that is counted.
        kept = len(marks) - len(marks.rstrip(b"0123456789"))
        del marks[: len(marks) - min(kept, MAX_DIGITS)]
        if len(self.bare) > self._most:
            raise RequestError(
                f"{self._what} holds over {self._most} bytes beside its pictures; {self._limits.plain_reason}",
                code="context_length_exceeded",
            )
        # Every string of a text that is JSON stands behind one of the marks, a name before one more.
        if max(self._values, self._strings // 2 - 1) > self._limits.values:
            raise RequestError(f"{self._what} holds over {self._limits.values} values")
