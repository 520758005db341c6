"""What holds one answer to a form, token by token."""

from __future__ import annotations

from typing import Protocol

from luce.engines.seam import Mask

__all__ = ["Constraint"]


class Constraint(Protocol):
    """Belongs to one request and moves with it. What it allows depends on the answer's tokens alone."""

    @property
    def mask(self) -> Mask | None:
        """What the next token may be; None: anything. Not defined between a :meth:`take` that said True and the end of
        :meth:`compute`."""

    @property
    def complete(self) -> bool:
        """The answer is over: what it is held to has ended it, whatever the sampling parameters say."""

    def take(self, token: int) -> bool:
        """The next token was sampled. Takes next to no time; True: :meth:`compute` has to run before the mask is known.

        Called with tokens that the mask allowed, never while :meth:`compute` runs."""

    def compute(self) -> None:
        """Make :attr:`mask` known. On any thread, one at a time; may take milliseconds, the interpreter lock free.

        Raises:
            RequestError: this answer cannot be held to its form any further.
        """

    def fork(self) -> Constraint:
        """The same for another answer, at the same place. Not while :meth:`compute` runs."""
