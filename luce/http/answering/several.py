"""Several answers to one HTTP request, read as their pieces come."""

from __future__ import annotations

from collections.abc import Sequence

from luce.http.answering.reader import AnswerReader, Finish, Piece, TokenCounts

__all__ = ["AnswersReader"]

Item = tuple[int, Piece | Finish]


class AnswersReader:
    """Reads all answers of a request, whichever has something, in turn, so that none waits for a client that reads
    another one.

    Args:
        readers: of requests that were submitted together. Nobody else reads them.
    """

    def __init__(self, readers: Sequence[AnswerReader]) -> None:
        self.readers = readers
        self._open = list(range(len(readers)))
        """Whose end was not read yet; the one whose turn it is comes first."""

    @property
    def counts(self) -> TokenCounts:
        """Of all together. A prompt that several choices share counts once."""
        each = [reader.counts for reader in self.readers]
        firsts = [counts for counts, reader in zip(each, self.readers, strict=True) if reader.choice == 0]
        return TokenCounts(
            sum(one.prompt for one in firsts),
            sum(one.cached for one in firsts),
            sum(one.completion for one in each),
            sum(one.reasoning for one in each),
        )

    async def next(self) -> Item | None:
        """(place of the answer, its next piece or its end); None when all have ended. Cancelling this wait loses
        nothing.

        Raises:
            LuceError: what ended one of the answers that is not whole, after its last piece.
        """
        while self._open:
            found = self._take()
            if found is not None:
                return found
            await self.readers[0].arrival()
        return None

    def _take(self) -> Item | None:
        for turn, place in enumerate(self._open):
            item = self.readers[place].take()
            if item is not None:
                self._open = self._open[turn + 1 :] + self._open[:turn]
                if isinstance(item, Finish):
                    self.readers[place].let_go()
                else:
                    self._open.append(place)
                return place, item
        return None
