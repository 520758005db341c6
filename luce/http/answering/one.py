"""The answer of a request that has one alone, written as it comes or once it is whole: for APIs of typed events."""

from __future__ import annotations

from typing import Protocol

from luce.http.answering.reader import AnswerReader, Finish, Piece

__all__ = ["AnswerEvents", "AnswerWriter", "whole_answer"]


class AnswerWriter(Protocol):
    """Writes one answer as its API has it: as events (``start``, ``take``, ``end``), or whole (``keep``, ``whole``)."""

    def start(self) -> bytes:
        """The first events."""

    def take(self, piece: Piece) -> bytes:
        """Events for a piece of the answer; b"" when there is nothing in it to show."""

    def end(self, finish: Finish) -> bytes:
        """The last events."""

    def keep(self, piece: Piece) -> None:
        """Take in a piece of an answer that is given whole."""

    def whole(self, finish: Finish) -> bytes:
        """The answer of all pieces that were kept, as one object."""


class AnswerEvents:
    """The events of one streamed answer."""

    def __init__(self, reader: AnswerReader, writer: AnswerWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._ended = False

    def first(self) -> bytes:
        return self._writer.start()

    async def next(self) -> bytes:
        while not self._ended:
            item = await self._reader.next()
            if isinstance(item, Finish):
                self._ended = True
                return self._writer.end(item)
            events = self._writer.take(item)
            if events:
                return events
        return b""


async def whole_answer(reader: AnswerReader, writer: AnswerWriter) -> bytes:
    """The answer once it is whole. Raises LuceError: what ended one that is not."""
    while not isinstance(item := await reader.next(), Finish):
        writer.keep(item)
    return writer.whole(item)
