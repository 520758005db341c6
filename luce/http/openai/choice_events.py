"""Answers in choices, as chunks of a stream or whole: what chat completions and completions do alike."""

from __future__ import annotations

from typing import Protocol

import attrs

from luce.engines.seam import SampledToken
from luce.http.answering.reader import Finish, Piece
from luce.http.answering.several import AnswersReader
from luce.http.sse import DONE, KEEP_ALIVE, data
from luce.text.answer_parts import Part

__all__ = ["ChoiceEvents", "ChunkWriter", "WholeAnswer", "whole_answers"]


class ChunkWriter(Protocol):
    """Writes the chunks of a stream as JSON."""

    def first_chunks(self) -> list[bytes]:
        """Before there is anything of an answer."""

    def piece_chunks(self, index: int, piece: Piece) -> list[bytes]:
        """A piece of a choice; none when there is nothing in it that the client would see."""

    def finish_chunk(self, index: int, finish: Finish) -> bytes:
        """The end of a choice."""

    def usage_chunk(self) -> bytes | None:
        """The last chunk, with no choices, when the client asked for it."""


class ChoiceEvents:
    """The events of streamed answers."""

    def __init__(self, reader: AnswersReader, writer: ChunkWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._ended = False

    def first(self) -> bytes:
        return b"".join(map(data, self._writer.first_chunks())) or KEEP_ALIVE

    async def next(self) -> bytes:
        while not self._ended:
            found = await self._reader.next()
            if found is None:
                self._ended = True
                usage = self._writer.usage_chunk()
                return (data(usage) if usage is not None else b"") + DONE
            index, item = found
            if isinstance(item, Finish):
                return data(self._writer.finish_chunk(index, item))
            chunks = self._writer.piece_chunks(index, item)
            if chunks:
                return b"".join(map(data, chunks))
        return b""


@attrs.frozen(eq=False)
class WholeAnswer:
    """One of several, from its beginning to its end."""

    parts: list[Part]
    tokens: list[SampledToken]
    finish: Finish


async def whole_answers(reader: AnswersReader) -> list[WholeAnswer]:
    """All answers once they are whole, by their place. Raises LuceError: what ended one that is not."""
    parts: list[list[Part]] = [[] for _ in reader.readers]
    tokens: list[list[SampledToken]] = [[] for _ in reader.readers]
    ends: dict[int, Finish] = {}
    while (found := await reader.next()) is not None:
        place, item = found
        if isinstance(item, Finish):
            ends[place] = item
        else:
            parts[place] += item.parts
            tokens[place] += item.tokens
    return [WholeAnswer(parts[place], tokens[place], ends[place]) for place in range(len(parts))]
