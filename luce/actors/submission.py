"""What a client asks for, ready to run, and the handle it gets back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import attrs
import numpy as np
import numpy.typing as npt

from luce.actors.token_buffer import Delta, End, TokenBuffer
from luce.constraints.constraint import Constraint
from luce.constraints.wish import ConstraintWish
from luce.engines.loaded import PreparedPrompt
from luce.engines.seam import Capabilities, ImageSpan, PatchImage
from luce.sampling.parameters import SamplingParams
from luce.scheduling.prefix_keys import PrefixKeys, prefix_namespace

__all__ = ["Handle", "Submission", "Timings", "Usage", "prefix_keys"]


@attrs.frozen(eq=False)
class Submission:
    """One request, prepared: nothing in it needs CPU-heavy work any more."""

    id: str
    """User-visible request id; of further choices the first one's with their number behind it."""
    prompt: PreparedPrompt
    images: tuple[PatchImage, ...]
    params: SamplingParams
    """Validated, seed resolved, max_tokens already bounded by the context."""
    stop: tuple[str, ...] = ()
    include_stop: bool = False
    """Keep the matched stop string in the text."""
    stop_in_reasoning: bool = True
    """Stop strings apply to text in think blocks too."""
    skip_special_tokens: bool = True
    timeout: float | None = None
    """Seconds from its arrival until its answer is complete, or it ends with an error; None: what the server allows."""
    cache_salt: bytes = b""
    """Requests of different salts share no cached prefix."""
    keys: PrefixKeys | None = attrs.field(default=None, repr=False)
    """Names of the prompt's prefixes (:func:`prefix_keys`), made beforehand: that takes a while for long ones."""
    constraint: Constraint | None = attrs.field(default=None, repr=False)
    """What holds the answer to its form, its first mask known. The request that is made of this takes it for its own:
    a second one needs a :meth:`~luce.constraints.constraint.Constraint.fork`."""
    form: ConstraintWish | None = attrs.field(default=None, repr=False)
    """What ``constraint`` was made of, for who records it."""
    n: int = 1
    """Choices that are asked for with this prompt, see `choices.py`."""
    choice: int = 0
    """Which of them this is."""

    def without_pictures(self) -> Submission:
        """The same with no pictures in it, nor in its prompt."""
        prompt = self.prompt
        bare = _BarePrompt(
            prompt.token_ids,
            prompt.positions,
            prompt.rope_delta,
            prompt.spans,
            prompt.answer_start,
            prompt.turn_ends,
            prompt.starts_in_thinking,
        )
        return attrs.evolve(self, images=(), prompt=bare, constraint=None)


@attrs.frozen(eq=False)
class _BarePrompt:
    """A prompt's rows without what they were made from."""

    token_ids: npt.NDArray[np.int32]
    positions: npt.NDArray[np.int32]
    rope_delta: int
    spans: tuple[ImageSpan, ...]
    answer_start: int
    turn_ends: tuple[int, ...]
    starts_in_thinking: bool


def prefix_keys(submission: Submission, capabilities: Capabilities) -> PrefixKeys:
    """Names of a prompt's prefixes. Hashes the whole prompt: for long ones call it on a worker thread."""
    prompt = submission.prompt
    return PrefixKeys(
        prompt.token_ids,
        capabilities.block_size,
        prefix_namespace(b"", salt=submission.cache_salt),
        prompt.spans,
        [image.digest for image in submission.images],
    )


@attrs.define
class Usage:
    """What a request costs; the request's own task fills it in."""

    prompt_tokens: int
    cached_tokens: int = 0
    """Of the prompt, those whose rows came from the prefix cache when the request first got a slot."""


@attrs.define
class Timings:
    """Seconds on the server's clock; None until it happened."""

    arrived: float
    granted: float | None = None
    first_token: float | None = None
    ended: float | None = None


@attrs.frozen(eq=False)
class Handle:
    """A running request as its client sees it. Cancel it, or read to the :class:`End`; never just forget it."""

    id: str
    usage: Usage
    """To be read only."""
    _buffer: TokenBuffer
    _cancel: Callable[[], None]
    timings: Timings
    """To be read only."""
    choice: int = 0
    """Which of several choices for one prompt it is."""

    @property
    def prompt_tokens(self) -> int:
        return self.usage.prompt_tokens

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

    def take(self) -> Delta | End | None:
        """What :meth:`next` gives, without waiting; None when there is nothing yet."""
        return self._buffer.take()

    def arrival(self) -> Awaitable[None]:
        """Await it at once, when :meth:`take` has found nothing: returns when there may be something, here or for
        another request that was submitted together with this one."""
        return self._buffer.arrival()

    def cancel(self) -> None:
        """The client is gone: free the slot within one step. Safe at any time, any number of times."""
        self._cancel()
