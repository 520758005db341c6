"""Runs the requests of a trace again on a real engine and compares every token with what was recorded.

Nothing is kept of how it went then but what answers may depend on: when requests come, beside whom they run, in which
slots and chunks, what is cached and who gives way all follow from this run. That tokens are equal all the same is the
first promise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import attrs
import numpy as np
import numpy.typing as npt
import trio

from luce.actors.service import Service
from luce.actors.submission import Handle, Submission
from luce.actors.token_buffer import Delta
from luce.errors import ConfigError, LuceError
from luce.replay.recorded_requests import RecordedRequest
from luce.replay.submissions import submission_of
from luce.trace.schema import Header

__all__ = ["NO_TOKEN", "Other", "Rerun", "check_repeatable", "run_again"]

NO_TOKEN = "it got no token"
"""Why a request is not compared, where nothing is missing."""


@attrs.frozen
class Other:
    """A request whose answer came out otherwise."""

    id: str
    place: int
    """Tokens that are alike before it."""
    recorded: int | None
    """None: it has no more."""
    found: int | None
    why: str = ""
    """What it ended with instead."""


@attrs.define
class Rerun:
    """What came of running requests again."""

    requests: int = 0
    tokens: int = 0
    """Compared, and equal but for the last one of each in ``others``."""
    skipped: Counter[str] = attrs.field(factory=Counter)
    """Requests that say nothing, by reason."""
    first_skipped: dict[str, str] = attrs.field(factory=dict)
    """Id of the first of them, by reason."""
    others: list[Other] = attrs.field(factory=list)

    def skip(self, why: str, name: str) -> None:
        self.skipped[why] += 1
        self.first_skipped.setdefault(why, name)

    @property
    def missed(self) -> int:
        """Requests that were not compared though they were answered: what is to be equal is not all there."""
        return self.skipped.total() - self.skipped[NO_TOKEN]


def check_repeatable(header: Header, model: str, fingerprint: str | None) -> None:
    """Can these answers be had again here, by this model?

    Raises:
        ConfigError: names what is missing or other, and what to do.
    """
    if not header.content:
        raise ConfigError(
            "it has no content, which answers to be compared need: record with luce serve --trace DIR --trace-content",
            flag="TRACE",
        )
    if header.fingerprint is None:
        raise ConfigError(
            "its engine has no fingerprint, so nothing says which device gives these tokens again",
            flag="TRACE",
        )
    if header.fingerprint != fingerprint:
        raise ConfigError(
            f"it was recorded on another device: {header.fingerprint}; this one is {fingerprint}. Bits of answers are "
            "promised on one kind of device; run this where it was recorded, or choose that one by --device",
            flag="TRACE",
        )
    if header.model != model:
        raise ConfigError(
            f"the trace is of the model {header.model!r}, not of {model!r}; --name says that they are the same",
            flag="MODEL",
        )


async def run_again(
    service: Service,
    requests: Iterator[RecordedRequest],
    scale: npt.NDArray[np.float32] | None,
    *,
    beside: int,
    told: Callable[[Rerun], None] = lambda rerun: None,
) -> Rerun:
    """Ask for all of them, at most ``beside`` at a time, in the order in which they come.

    Args:
        service: of the model that was recorded; it runs.
        scale: of the model's preprocessor; None: it takes no pictures.
        told: called after each.
    """
    rerun, room = Rerun(), trio.Semaphore(beside)

    def asked(one: RecordedRequest) -> Submission:
        return submission_of(one.arrival, service.model, scale, len(one.tokens))

    async def compare(handle: Handle, one: RecordedRequest) -> None:
        _judge(rerun, one, *await _read(handle))
        room.release()
        told(rerun)

    async with trio.open_nursery() as nursery:
        while (one := await trio.to_thread.run_sync(next, requests, None)) is not None:
            if (why := _useless(one)) is not None:
                rerun.skip(why, one.arrival.id)
                continue
            await room.acquire()
            try:
                handle = service.submit(await trio.to_thread.run_sync(asked, one))
            except (ValueError, LuceError) as error:
                rerun.skip(str(error), one.arrival.id)
                room.release()
            else:
                nursery.start_soon(compare, handle, one)
    return rerun


def _useless(one: RecordedRequest) -> str | None:
    if not one.complete:
        return "the trace does not say all of its tokens"
    return None if one.tokens else NO_TOKEN


async def _read(handle: Handle) -> tuple[list[int], str]:
    """Tokens of an answer, and what it failed for, or nothing."""
    tokens: list[int] = []
    while isinstance(item := await handle.next(), Delta):
        tokens += [token.token for token in item.tokens]
    return tokens, str(item.error) if item.error is not None else ""


def _judge(rerun: Rerun, one: RecordedRequest, found: list[int], why: str) -> None:
    rerun.requests += 1
    alike = next(
        (at for at, (a, b) in enumerate(zip(one.tokens, found, strict=False)) if a != b),
        min(len(one.tokens), len(found)),
    )
    rerun.tokens += alike
    if alike < max(len(one.tokens), len(found)):
        rerun.tokens += 1
        recorded, now = (tokens[alike] if alike < len(tokens) else None for tokens in (one.tokens, found))
        rerun.others.append(Other(one.arrival.id, alike, recorded, now, why))
