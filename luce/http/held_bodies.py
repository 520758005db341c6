"""Request bodies in memory: counted over all connections, bounded together, and let go as soon as they are not needed.

A body is held from its first byte until the request is prepared, refused or over. Its bytes are then cleared where
they stand: the request itself may live on in reference cycles (a cancelled request's traceback holds its frames and
they hold it) until Python's collector comes by, which for an idle server may be never.
"""

from __future__ import annotations

import trio
from quart_trio.wrappers.request import TrioBody
from werkzeug.exceptions import RequestEntityTooLarge, RequestTimeout

from luce.errors import CapacityError

__all__ = ["BodyBudget", "HeldBody"]


class BodyBudget:
    """How many bytes of bodies are held by all requests of one server. The trio thread owns it.

    Args:
        most: bytes held at once.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.held = 0

    def take(self, count: int) -> bool:
        """Count ``count`` more bytes; False when that would be too many."""
        if self.held + count > self.most:
            return False
        self.held += count
        return True

    def give_back(self, count: int) -> None:
        self.held -= count
        assert self.held >= 0, "more bytes were given back than taken"

    def full(self) -> CapacityError:
        return CapacityError(
            f"the server holds {self.held} bytes of other requests' bodies, and {self.most} at most "
            "(--max-buffered-bodies); send the request again"
        )


class HeldBody(TrioBody):
    """One request's body as it arrives.

    Args:
        budget: shared by all.
        expected: the request's ``Content-Length``.
        most: bytes of one body.
    """

    def __init__(self, budget: BodyBudget, expected: int | None, most: int | None) -> None:
        super().__init__(expected, most)  # refuses an expected length over the limit
        self._budget = budget
        self._more = 0
        if self._must_raise is None and expected is not None and budget.held + expected > budget.most:
            self._must_raise = budget.full()

    def append(self, data: bytes) -> None:
        """Take in a piece. What comes after a refusal is dropped."""
        if not data or self._must_raise is not None:
            return
        if self._max_content_length is not None and len(self._data) + len(data) > self._max_content_length:
            self.refuse(RequestEntityTooLarge())
        elif not self._budget.take(len(data)):
            self.refuse(self._budget.full())
        else:
            self._data.extend(data)

    def take_more(self, count: int) -> None:
        """Count bytes that are held for this request beside its body, until :meth:`release`.

        Raises:
            CapacityError: all requests together would hold too much.
        """
        if not self._budget.take(count):
            raise self._budget.full()
        self._more += count

    def refuse(self, error: Exception) -> None:
        """Hold nothing more; whoever waits for the body gets ``error``."""
        self.release()
        self._must_raise = error
        self.set_complete()

    def release(self) -> None:
        """Give the bytes back. Safe at any time, any number of times; the body must not be looked at after it."""
        self._budget.give_back(len(self._data) + self._more)
        self._more = 0
        self._data.clear()

    def drop_rest(self) -> None:
        """The request is answered: whatever still arrives is of no use."""
        self.release()
        self._must_raise = self._must_raise or EOFError("the request was answered before")

    async def whole(self, seconds: float) -> bytearray:
        """The body itself, not a copy, once it is there. Belongs to the caller until :meth:`release`.

        Raises:
            HTTPException: 413 over the limit, 408 when it does not arrive in ``seconds``.
            CapacityError: all requests together hold too much.
        """
        if self._must_raise is None:
            with trio.move_on_after(seconds) as patience:
                await self._complete.wait()
            if patience.cancelled_caught:
                raise RequestTimeout
        if self._must_raise is not None:
            raise self._must_raise
        return self._data
