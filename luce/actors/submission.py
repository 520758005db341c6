"""What a client asks for, ready to run, and the handle it gets back."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import attrs

from luce.actors.token_buffer import Delta, End, TokenBuffer
from luce.engines.loaded import PreparedPrompt
from luce.engines.seam import PatchImage
from luce.sampling.parameters import SamplingParams

if TYPE_CHECKING:
    from luce.actors.request import Timings

__all__ = ["Handle", "Submission"]


@attrs.frozen(eq=False)
class Submission:
    """One request, prepared: nothing in it needs CPU-heavy work any more."""

    id: str
    """User-visible request id."""
    prompt: PreparedPrompt
    images: tuple[PatchImage, ...]
    params: SamplingParams
    """Validated, seed resolved, max_tokens already bounded by the context."""
    stop: tuple[str, ...] = ()
    include_stop: bool = False
    """Keep the matched stop string in the text."""
    skip_special_tokens: bool = True

    def without_pictures(self, prompt: PreparedPrompt) -> Submission:
        """The same with no pictures in it; ``prompt`` is its prompt without them."""
        return attrs.evolve(self, images=(), prompt=prompt)


@attrs.frozen(eq=False)
class Handle:
    """A running request as its client sees it. Cancel it, or read to the :class:`End`; never just forget it."""

    id: str
    prompt_tokens: int
    _buffer: TokenBuffer
    _cancel: Callable[[], None]
    timings: Timings
    """To be read only."""

    @property
    def completion_tokens(self) -> int:
        """Generated so far, whether its client has taken them or not."""
        return self._buffer.tokens

    @property
    def end(self) -> End | None:
        """How it ended, once it has."""
        return self._buffer.end_reached

    async def next(self) -> Delta | End:
        """The next piece of the answer, then its end. Cancelling this wait cancels nothing but the wait."""
        return await self._buffer.get()

    def cancel(self) -> None:
        """The client is gone: free the slot within one step. Safe at any time, any number of times."""
        self._cancel()
