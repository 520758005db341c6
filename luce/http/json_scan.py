"""A look over a JSON text before it is parsed: how much it holds, without building any of it.

msgspec builds the whole value in one call that holds the interpreter's lock, so a hostile body would stop every
running stream for as long as that takes. Here the text is walked from quote to quote, in steps that let other threads
run. Strings of pictures, which may be long, are stepped over at the speed of memory; all other bytes are counted and
bounded, so that little is left to parse.

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
_PIECE = 1 << 16
"""Bytes that are worked on in one step."""


@attrs.frozen
class Limits:
    """What a text may hold at most."""

    values: int
    """Counted by brackets, braces and commas outside strings."""
    plain_bytes: int | None = None
    """Bytes beside the strings of pictures (``"data:…"``)."""
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
    walk = _Walk(limits, what)
    start = 0
    while (quote := data.find(b'"', start)) >= 0:
        walk.outside(data, start, quote)
        end, escaped = _end_of_string(data, quote + 1)
        if not escaped and end - quote > 256 and data[quote + 1 : quote + 6].lower() == b"data:":
            walk.picture()
        else:
            walk.string(data, quote, end)
        start = end
    walk.outside(data, start, len(data))
    walk.check()
    return Scan(bytes(walk.bare), walk.names, walk.long_number)


def _end_of_string(data: bytes | bytearray, start: int) -> tuple[int, bool]:
    """(the place behind the closing quote, whether a quote was escaped before it)."""
    place, escaped = start, False
    while (quote := data.find(b'"', place)) >= 0:
        if not _backslashes(data, start, quote) % 2:
            return quote + 1, escaped
        place, escaped = quote + 1, True
    return len(data), escaped


def _backslashes(data: bytes | bytearray, start: int, end: int) -> int:
    """How many backslashes stand directly before ``end``."""
    if end == start or data[end - 1] != 0x5C:
        return 0
    width = 64
    while True:
        part = data[max(start, end - width) : end]
        run = len(part) - len(part.rstrip(b"\\"))
        if run < len(part) or end - width <= start:
            return run
        width *= 2


class _Walk:
    """What was counted so far. Checked piece by piece, so that a hostile text ends early."""

    def __init__(self, limits: Limits, what: str) -> None:
        self.bare = bytearray()
        self.names = 0
        self.long_number = False
        self._limits = limits
        self._what = what
        self._marks = bytearray()
        """Text outside strings that is not counted yet, a quote for every string."""
        self._values = 0
        self._strings = 0

    def outside(self, data: bytes | bytearray, start: int, end: int) -> None:
        while start < end:
            piece = data[start : min(end, start + _PIECE)]
            self._marks += piece
            self.bare += piece
            start += len(piece)
            if len(self._marks) >= _PIECE:
                self.check()

    def string(self, data: bytes | bytearray, start: int, end: int) -> None:
        self._strings += 1
        self._marks += b'"'
        for place in range(start, end, _PIECE):
            self.bare += data[place : min(end, place + _PIECE)]
            if len(self.bare) >= _PIECE:
                self._check_size()

    def picture(self) -> None:
        self._strings += 1
        self._marks += b'"'
        self.bare += b'""'

    def check(self) -> None:
        marks = self._marks
        self._values += sum(marks.count(mark) for mark in (b"[", b"{", b","))
        self.names += marks.count(b":")
        self.long_number = self.long_number or _TOO_LONG.search(marks) is not None
        # A number may go on behind the piece: its digits are kept, and hold nothing else that is counted.
        kept = len(marks) - len(marks.rstrip(b"0123456789"))
        del marks[: len(marks) - min(kept, MAX_DIGITS)]
        self._check_size()
        # Every string of a text that is JSON stands behind one of the marks, a name before one more.
        if max(self._values, self._strings // 2 - 1) > self._limits.values:
            raise RequestError(f"{self._what} holds over {self._limits.values} values")

    def _check_size(self) -> None:
        most = self._limits.plain_bytes
        if most is not None and len(self.bare) > most:
            raise RequestError(
                f"{self._what} holds over {most} bytes beside its pictures; {self._limits.plain_reason}",
                code="context_length_exceeded",
            )
