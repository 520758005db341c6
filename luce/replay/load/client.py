"""One client: connects ahead of time, sends when it is due, reads as the trace says, and goes away."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from functools import partial
from typing import Annotated, Any

import h11
import msgspec
import trio

from luce.errors import reason
from luce.replay.load.bodies import Prepared
from luce.replay.load.event_stream import Event, EventStream
from luce.replay.load.metronome import Metronome, Punctual
from luce.replay.load.probe import error_text
from luce.replay.load.tally import Outcome, Tally
from luce.replay.load.target import Target, answer, asking, connected

__all__ = ["ask"]

MOST_EVENT = 1 << 20
"""Bytes of an event of an answer."""
END_SECONDS = 1.0
"""That a whole answer's connection is left open for the server's end of it: it may count what its client leaves."""
MOST_ERROR = 1 << 14
"""Bytes of an answer that is none which are looked at."""


_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 40)]


class _Details(msgspec.Struct):
    cached_tokens: _Count | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: _Count = 0
    completion_tokens: _Count = 0
    prompt_tokens_details: _Details | None = None


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[Any] | None = None


class _Choice(msgspec.Struct):
    index: int = 0
    delta: _Delta | None = None
    finish_reason: str | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None
    object: Any = None
    message: Any = None
    detail: Any = None

    @property
    def is_error(self) -> bool:
        """OpenAI's and the other ways in which servers say that an answer came to nothing."""
        if self.error is not None or self.object == "error":
            return True
        told = self.message is not None or self.detail is not None
        return told and self.choices is None and self.usage is None


_CHUNK = msgspec.json.Decoder(_Chunk)


class _Left(Exception):  # noqa: N818 - no error: the trace's client went away here
    pass


class _Broken(Exception):  # noqa: N818 - caught here
    """Says why."""


async def ask(target: Target, given: Prepared, tally: Tally, beat: Metronome, seconds: float) -> None:
    """Send a request when it is due, and count what comes of it. It is among ``tally.open`` already.

    Args:
        beat: sends it at its time.
        seconds: that an answer may take.
    """
    traffic = given.asked.traffic
    outcome = Outcome(
        given.due,
        choices=given.asked.choices,
        wanted_prompt=traffic.prompt_tokens if given.asked.text is None else 0,
        wanted_output=traffic.output_tokens * given.asked.choices,
    )
    leaves = given.asked.leaves
    due = tally.start + given.due
    gone = due + leaves.seconds if leaves is not None and not leaves.pieces else float("inf")
    limit = trio.CancelScope(deadline=due + seconds)
    leaving = trio.CancelScope(deadline=gone)
    try:
        with limit, leaving:
            try:
                await _talk(target, given, tally, beat, outcome)
            except _Left:
                outcome.ending = "left"
            except _Broken as error:
                outcome.error = str(error)
            except (OSError, trio.BrokenResourceError, h11.RemoteProtocolError) as error:
                cause = error.__cause__ if isinstance(error, trio.BrokenResourceError) else None
                outcome.error = f"connection: {reason(cause or error)}"
        if outcome.ending == "finished":
            pass  # whatever came behind its end
        elif leaving.cancelled_caught:
            outcome.ending = "left"
        elif limit.cancelled_caught:
            outcome.ending, outcome.error = "late", f"no whole answer within {seconds:g} s"
    except trio.Cancelled:
        if outcome.ending != "finished":
            outcome.ending, outcome.error = "failed", "the run was stopped"
        raise
    finally:
        tally.open -= 1
        whole = outcome.ended if outcome.ending == "finished" else None
        tally.end(outcome, trio.current_time() if whole is None else whole)


async def _talk(target: Target, given: Prepared, tally: Tally, beat: Metronome, outcome: Outcome) -> None:
    punctual: Punctual | None = None

    def through(tcp: trio.SocketStream) -> Punctual:
        nonlocal punctual
        punctual = Punctual(tcp, beat)
        return punctual

    async with connected(target, small_window=bool(given.asked.stalls), through=through) as stream:
        assert punctual is not None
        if isinstance(stream, trio.SSLStream):
            await stream.do_handshake()
        wire, data = asking(target, "POST", "/v1/chat/completions", given.taken())
        punctual.hold(tally.start + given.due, partial(tally.sent, outcome))
        await stream.send_all(data)
        del data  # answers may take long
        await _read(stream, punctual, wire, given, tally, outcome)


async def _read(
    stream: trio.abc.Stream,
    punctual: Punctual,
    wire: h11.Connection,
    given: Prepared,
    tally: Tally,
    outcome: Outcome,
) -> None:
    """Times are when the system had what is read, not when this process came to it."""
    leaves, stalls = given.asked.leaves, list(given.asked.stalls)

    async def waits() -> None:
        """What the client does where it has got so far."""
        if leaves is not None and leaves.pieces and outcome.pieces >= leaves.pieces:
            raise _Left
        while stalls and outcome.pieces >= stalls[0].pieces:
            tally.stalls += 1
            await trio.sleep(stalls.pop(0).seconds)

    await waits()
    async with aclosing(_events(stream, wire, outcome)) as events:
        async for event in events:
            if event.data.strip() == b"[DONE]":
                outcome.ended = punctual.received
                break
            _take(event, tally, outcome, punctual.received)
            await waits()
    if outcome.ended is None:
        raise _Broken("the answer broke off")
    if len(outcome.finishes) < outcome.choices:
        raise _Broken(f"[DONE] behind {len(outcome.finishes)} of {outcome.choices} finish reasons")
    outcome.ending = "finished"
    await _see_the_end(stream, wire)


async def _see_the_end(stream: trio.abc.Stream, wire: h11.Connection) -> None:
    """Of the connection of an answer that is whole; for a moment, and whatever it is."""
    with (
        trio.move_on_after(END_SECONDS),
        suppress(OSError, trio.BrokenResourceError, h11.RemoteProtocolError),
    ):
        async with aclosing(answer(stream, wire)) as events:
            async for _ in events:
                pass


def _take(event: Event, tally: Tally, outcome: Outcome, received: float) -> None:
    """A chunk that was there at a time of trio's clock. Raises _Broken for one that is none, or an error."""
    if event.name == b"error":
        raise _Broken(error_text(200, event.data))
    try:
        chunk = _CHUNK.decode(event.data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise _Broken(f"a chunk that is none: {reason(error)}") from None
    if chunk.is_error:
        raise _Broken(error_text(200, event.data))
    if chunk.usage is not None:
        outcome.prompt_tokens = chunk.usage.prompt_tokens
        outcome.output_tokens = chunk.usage.completion_tokens
        details = chunk.usage.prompt_tokens_details
        outcome.cached_tokens = (details.cached_tokens or 0) if details is not None else 0
    choices = chunk.choices or ()
    if any(_said(choice) for choice in choices):
        tally.piece(outcome, received, trio.current_time())
    if ended := {choice.index for choice in choices if choice.finish_reason}:
        outcome.finishes |= ended
        outcome.finished = received


def _said(choice: _Choice) -> bool:
    delta = choice.delta
    return delta is not None and bool(
        delta.content or delta.reasoning_content or delta.reasoning or delta.tool_calls
    )


async def _events(
    stream: trio.abc.Stream, wire: h11.Connection, outcome: Outcome
) -> AsyncGenerator[Event, None]:
    """Of a streamed answer. Raises _Broken for an answer of another status than 200."""
    parts, said, status = EventStream(), b"", 200
    async with aclosing(answer(stream, wire)) as events:
        async for event in events:
            if isinstance(event, h11.Response):
                status = event.status_code
                continue
            if status != 200:
                said = (said + event.data)[:MOST_ERROR]
                continue
            for one in parts.take(event.data):
                yield one
            if parts.held > MOST_EVENT:
                raise _Broken(f"an event of the answer has more than {MOST_EVENT} bytes")
    if status != 200:
        outcome.ending = "refused"
        raise _Broken(error_text(status, said))
    for one in parts.end():
        yield one
