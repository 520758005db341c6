"""The requests of luce's own traces as load: lengths, pictures, cancels and stalls as they were."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from pathlib import Path

import attrs
import msgspec

from luce.replay.load.request import Leaving, LoadRequest, Stall
from luce.trace.events import EventRecord
from luce.trace.reader import FileStart, Item, read_trace
from luce.trace.schema import Arrival, Gap, Refused
from luce.trace.traffic.request import TrafficRequest

__all__ = ["BLOCK", "recorded_load"]

BLOCK = 16
"""Tokens of the prefixes that are told apart, in a trace with content."""
ENDINGS = ("ending_finished", "ending_failed", "ending_cancelled")
SLACK = 30.0
"""Seconds by which a request may be taken in behind one that came later: its pictures were being prepared."""


@attrs.define
class _Live:
    arrival: Arrival
    blocks: tuple[int, ...]
    tokens: int = 0
    stalls: list[Stall] = attrs.field(factory=list)
    stalled: float | None = None
    """Since when."""


@attrs.define
class _State:
    live: dict[str, _Live] = attrs.field(factory=dict)
    done: list[tuple[float, int, LoadRequest]] = attrs.field(factory=list)
    """A heap by arrival."""
    refused: int = 0
    unfinished: int = 0
    zero: float | None = None

    def ready(self, now: float) -> Iterator[LoadRequest]:
        """Those that nobody can come before any more."""
        before = min((one.arrival.arrived for one in self.live.values()), default=now)
        before = min(before, now - SLACK)
        while self.done and self.done[0][0] <= before:
            yield self._taken()

    def rest(self) -> Iterator[LoadRequest]:
        while self.done:
            yield self._taken()

    def _taken(self) -> LoadRequest:
        arrived, _, request = heapq.heappop(self.done)
        if self.zero is None:
            self.zero = arrived
        traffic = attrs.evolve(request.traffic, arrival=max(arrived - self.zero, 0.0))
        return attrs.evolve(request, traffic=traffic)


def recorded_load(paths: Iterable[Path], warnings: list[str]) -> Iterator[LoadRequest]:
    """Requests of one run in order of arrival. Memory is that of those that arrive during the longest one.

    Answers are as long as they were; those that were cancelled or failed, as long as they were allowed to be, or as
    they had got. A trace with content says which prompts share their start; without, only which are alike.

    Args:
        warnings: gets lines about what is left out.

    Raises:
        TraceFileError: as :func:`luce.trace.reader.read_trace`.
    """
    state, expected = _State(), -1
    for item in read_trace(paths, warnings):
        lost = False
        if isinstance(item, EventRecord):
            expected = item.seq + 1
            if item.machine == "request":
                _moved(state, item)
                yield from state.ready(item.t)
        elif isinstance(item, FileStart):
            lost = item.header.first != expected
        else:
            lost = _noted(state, item)
        if lost:
            state.unfinished += len(state.live)
            state.live.clear()
    for one in state.live.values():
        _done(state, one, None, cancelled=False)
    yield from state.rest()
    if state.refused:
        warnings.append(f"{state.refused:,} requests that the recorded server refused are left out")
    if state.unfinished:
        warnings.append(f"{state.unfinished:,} requests around a gap in the trace are left out")


def _noted(state: _State, item: Item) -> bool:
    """Is something lost here?"""
    detail = item[2] if isinstance(item, tuple) and not isinstance(item, EventRecord) else None
    if isinstance(detail, Arrival):
        blocks = _blocks(detail)
        bare = _without_content(detail)
        state.live[detail.id] = _Live(bare, blocks)
    elif isinstance(detail, Refused):
        state.refused += 1
    return isinstance(detail, Gap)


def _without_content(arrival: Arrival) -> Arrival:
    """The prompt's rows and the pictures' pixels are not held while it lives."""
    pictures = tuple(msgspec.structs.replace(one, values=None) for one in arrival.pictures)
    return msgspec.structs.replace(arrival, token_ids=None, positions=None, form=None, pictures=pictures)


def _blocks(arrival: Arrival) -> tuple[int, ...]:
    """Names of blocks of :data:`BLOCK` tokens; each is that of everything up to its end."""
    if arrival.token_ids is None:
        return ()
    digest, names = blake2b(arrival.salt, digest_size=8), []
    for start in range(0, len(arrival.token_ids), 4 * BLOCK):
        digest.update(arrival.token_ids[start : start + 4 * BLOCK])
        names.append(int.from_bytes(digest.digest(), "little"))
    return tuple(names)


def _moved(state: _State, record: EventRecord) -> None:
    one = state.live.get(str(record.id))
    if one is None:
        return
    if record.event == "token":
        one.tokens += 1
    elif record.event == "client.full":
        one.stalled = record.t
    elif record.event == "client.drained" and one.stalled is not None:
        one.stalls.append(Stall(one.tokens, record.t - one.stalled))
        one.stalled = None
    for place in record.configuration:
        if place in ENDINGS:
            if one.stalled is not None:  # it never read on, and was sent away for it
                one.stalls.append(Stall(one.tokens, record.t - one.stalled))
            del state.live[str(record.id)]
            _done(state, one, record.t, cancelled=place == "ending_cancelled" and record.event == "cancel")
            return


def _done(state: _State, one: _Live, now: float | None, *, cancelled: bool) -> None:
    arrival = one.arrival
    if arrival.choice:  # it came with the first one
        return
    limit = arrival.sampling.get("max_tokens")
    tokens = one.tokens
    if cancelled or now is None or not tokens:
        tokens = max(limit if isinstance(limit, int) else 0, tokens + 1)
    seconds = 0.0 if now is None else max(now - arrival.arrived, 0.0)
    request = LoadRequest(
        TrafficRequest(
            0.0,
            arrival.prompt_tokens,
            tokens,
            one.blocks,
            BLOCK,
            tuple(picture.tokens for picture in arrival.pictures),
        ),
        name=(arrival.prompt_digest + arrival.salt).hex(),
        pictures=tuple(picture.digest.hex() for picture in arrival.pictures),
        choices=arrival.n,
        leaves=Leaving(one.tokens, seconds) if cancelled else None,
        stalls=tuple(one.stalls),
    )
    heapq.heappush(state.done, (arrival.arrived, arrival.order, request))
