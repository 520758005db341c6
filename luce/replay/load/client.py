"""One client: connects ahead of time, sends when it is due, reads as the trace says, and goes away."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from typing import Any

import h11
import msgspec
import trio

from luce.errors import reason
from luce.replay.load.bodies import Prepared
from luce.replay.load.metronome import Metronome, Punctual
from luce.replay.load.probe import error_text
from luce.replay.load.tally import Outcome, Tally
from luce.replay.load.target import Target, answer, asking, connected

__all__ = ["ask"]

MOST_LINE = 1 << 20
MOST_ERROR = 1 << 14
"""Bytes of an answer that is none which are looked at."""


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _Details | None = None


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[Any] | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    finish_reason: str | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: dict[str, Any] | str | None = None


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
        if leaving.cancelled_caught:
            outcome.ending = "left"
        elif limit.cancelled_caught:
            outcome.ending, outcome.error = "late", f"no whole answer within {seconds:g} s"
    except trio.Cancelled:
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
    finished = False

    async def waits() -> None:
        """What the client does where it has got so far."""
        if leaves is not None and leaves.pieces and outcome.pieces >= leaves.pieces:
            raise _Left
        while stalls and outcome.pieces >= stalls[0].pieces:
            tally.stalls += 1
            await trio.sleep(stalls.pop(0).seconds)

    await waits()
    async with aclosing(_lines(stream, wire, outcome)) as lines:
        async for line in lines:
            if line == b"data: [DONE]":
                finished, outcome.ended = True, punctual.received
            elif line.startswith(b"data:"):
                _take(line[5:], tally, outcome, punctual.received)
                await waits()
    if not finished:
        raise _Broken("the answer broke off")
    outcome.ending = "finished"


def _take(data: bytes, tally: Tally, outcome: Outcome, received: float) -> None:
    """A chunk that was there at a time of trio's clock. Raises _Broken for one that is none, or an error."""
    try:
        chunk = _CHUNK.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise _Broken(f"a chunk that is none: {reason(error)}") from None
    if chunk.error is not None:
        raise _Broken(error_text(200, msgspec.json.encode({"error": chunk.error})))
    if chunk.usage is not None:
        outcome.prompt_tokens = chunk.usage.prompt_tokens
        outcome.output_tokens = chunk.usage.completion_tokens
        details = chunk.usage.prompt_tokens_details
        outcome.cached_tokens = (details.cached_tokens or 0) if details is not None else 0
    if any(_said(choice) for choice in chunk.choices):
        tally.piece(outcome, received, trio.current_time())
    if any(choice.finish_reason for choice in chunk.choices):
        outcome.finished = received


def _said(choice: _Choice) -> bool:
    delta = choice.delta
    return delta is not None and bool(
        delta.content or delta.reasoning_content or delta.reasoning or delta.tool_calls
    )


async def _lines(
    stream: trio.abc.Stream, wire: h11.Connection, outcome: Outcome
) -> AsyncGenerator[bytes, None]:
    """Lines of a streamed answer that are not empty. Raises _Broken for an answer of another status than 200."""
    rest, status = b"", 200
    async with aclosing(answer(stream, wire)) as events:
        async for event in events:
            if isinstance(event, h11.Response):
                status = event.status_code
                continue
            rest += event.data
            if status != 200:
                rest = rest[:MOST_ERROR]
                continue
            *lines, rest = rest.split(b"\n")
            for line in lines:
                if line := line.strip():
                    yield line
            if len(rest) > MOST_LINE:
                raise _Broken(f"a line of the answer has more than {MOST_LINE} bytes")
    if status != 200:
        outcome.ending = "refused"
        raise _Broken(error_text(status, rest))
