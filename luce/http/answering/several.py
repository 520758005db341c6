"""Several answers to one HTTP request, read as their pieces come."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import trio

from luce.errors import LuceError
from luce.http.answering.reader import AnswerReader, Finish, Piece

__all__ = ["AnswersReader"]

Item = tuple[int, Piece | Finish]


class AnswersReader:
    """Reads all answers of a request, whichever has something next."""

    def __init__(self, readers: Sequence[AnswerReader]) -> None:
        self.readers = readers
        self._open = list(range(len(readers)))
        self._ready: deque[Item | LuceError] = deque()

    async def next(self) -> Item | None:
        """(place of the answer, its next piece or its end); None when all have ended. Cancelling this wait loses
        nothing.

        Raises:
            LuceError: what ended one of the answers that is not whole.
        """
        if not self._ready and self._open:
            await self._read()
        if not self._ready:
            return None
        item = self._ready.popleft()
        if isinstance(item, LuceError):
            raise item
        if isinstance(item[1], Finish):
            self._open.remove(item[0])
        return item

    async def _read(self) -> None:
        if len(self._open) == 1:
            self._ready.append((self._open[0], await self.readers[self._open[0]].next()))
            return
        async with trio.open_nursery() as nursery:
            for place in self._open:
                nursery.start_soon(self._read_one, place, nursery.cancel_scope)

    async def _read_one(self, place: int, others: trio.CancelScope) -> None:
        try:
            self._ready.append((place, await self.readers[place].next()))
        except LuceError as error:
            self._ready.append(error)
        others.cancel()
