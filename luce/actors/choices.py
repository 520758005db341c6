"""Several answers to one prompt: the requests that they are, and how one client reads them.

Each choice is a request of its own, with a slot, a seed and a buffer of its own, and gives what it would give alone.
Only the prompt is computed once, by the first one (the others follow it, see `request.scxml`), and whoever reads them
all sleeps in one place.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from luce.actors.submission import Handle, Submission
from luce.actors.token_buffer import End

__all__ = ["Choices", "choices_of"]

_WORST_FIRST = ("error", "cancelled", "length", "stop")


def choices_of(submission: Submission, n: int) -> tuple[Submission, ...]:
    """``n`` requests for the same prompt, of which the first is ``submission``: the others differ from it, and from
    each other, by their seeds. Copies no picture and hashes nothing."""
    first = attrs.evolve(submission, n=n)
    return (first, *(_choice(first, index) for index in range(1, n)))


def _choice(first: Submission, index: int) -> Submission:
    return attrs.evolve(
        first,
        id=f"{first.id}/{index}",
        first=first.id,
        choice=index,
        params=first.params.for_choice(index),
        keys=None if first.keys is None else first.keys.copy(),
    )


@attrs.frozen(eq=False)
class Choices:
    """What :meth:`luce.actors.service.Service.submit_all` has started, as its one client sees it: one reader at a time.

    Cancel it, or read every choice to its :class:`End`; never just forget it.
    """

    handles: tuple[Handle, ...]
    """In the order of the submissions."""

    @property
    def id(self) -> str:
        """The first one's."""
        return self.handles[0].id

    @property
    def prompt_tokens(self) -> int:
        """Of all prompts, each counted once however many choices share it."""
        return sum(handle.usage.prompt_tokens for handle in self._firsts())

    @property
    def cached_tokens(self) -> int:
        """Of these, those that somebody else had left in the prefix cache."""
        return sum(handle.usage.cached_tokens for handle in self._firsts())

    @property
    def completion_tokens(self) -> int:
        """Generated so far, whether their client has taken them or not."""
        return sum(handle.completion_tokens for handle in self.handles)

    @property
    def end(self) -> End | None:
        """How they ended, once all have; the worst of their ends."""
        ends = [handle.end for handle in self.handles]
        whole = [end for end in ends if end is not None]
        if len(whole) < len(ends):
            return None
        return min(whole, key=lambda end: _WORST_FIRST.index(end.reason))

    @property
    def arrived(self) -> float:
        return self.handles[0].timings.arrived

    @property
    def granted(self) -> float | None:
        """When the first of them got a slot."""
        return _first(handle.timings.granted for handle in self.handles)

    @property
    def first_token(self) -> float | None:
        """When the first token of any of them was there."""
        return _first(handle.timings.first_token for handle in self.handles)

    @property
    def ended(self) -> float | None:
        """When the last of them ended."""
        ends = [handle.timings.ended for handle in self.handles]
        times = [at for at in ends if at is not None]
        return max(times) if len(times) == len(ends) else None

    async def arrival(self) -> None:
        """Return when any choice may have something. Await it at once, when none had."""
        await self.handles[0].arrival()

    def cancel(self) -> None:
        """The client is gone: all slots are free within one step. Safe at any time, any number of times."""
        for handle in self.handles:
            handle.cancel()

    def _firsts(self) -> Iterable[Handle]:
        return (handle for handle in self.handles if handle.choice == 0)


def _first(times: Iterable[float | None]) -> float | None:
    return min((at for at in times if at is not None), default=None)
