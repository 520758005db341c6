"""The running server's event stream for one page, some twenty frames a second.

Every page takes from the stream by itself, when its connection has room: one that is not read, a stopped tab, is not
asked for anything, what it misses falls out of the stream's ring, and it is told how much that was. Records become JSON
right after the step loop has launched a step: half a millisecond of the host's while it would wait for the device.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import trio

from luce.actors.service import Service
from luce.actors.tracing import FOR_FILES, arrival, planned, rows_of, snapshot
from luce.charts.loader import chart_names, load_chart
from luce.http.slots import Slots, SlotsState
from luce.http.sse import data
from luce.http.ui.wire import Hello, Illegal, News, Strip, chart_infos, encode, forbidden, strip_of
from luce.replay.tracks import Tracks
from luce.trace import events, schema
from luce.trace.events import EventReader

__all__ = ["FRAME", "LiveEvents"]

FRAME = 1 / 22
"""Seconds between two frames in the mean. The page draws each as it comes."""
IDLE = 0.25
"""The same while nothing happens."""
BOARD = 0.5
"""Seconds between two looks at the slots."""
MOST_STEPS = 200
"""Records in a frame; of more, steps that changed nothing are left out: a busy server's tokens."""
MOST_LEFT = 2000
"""Of those that are left then."""
MOST_DETAILS = 1000
"""Kept for a page that does not read: a second or two of a busy server's plans, each of which is as large as its batch.
What is kept is also looked at by the garbage collector."""
MOST_KNOWN = 20_000
"""Machines of which it is remembered where they stood."""


class LiveEvents:
    """An :class:`luce.http.sse.EventSource` on a service's events. Close it when its page is gone."""

    def __init__(self, service: Service, slots: Slots, names: Callable[[], Mapping[str, str]]) -> None:
        """``names``: request ids by ids of answers."""
        self._service = service
        self._names = names
        self._slots = slots
        self._reader: EventReader = service.events.reader(most_details=MOST_DETAILS)
        self._snapshot = snapshot(service)
        self._tracks = Tracks(load_chart("block"), self._snapshot)
        self._stood: dict[tuple[str, str | int], tuple[str, ...]] = {}
        self._next_board = 0.0
        self._due = trio.current_time()

    def first(self) -> bytes:
        capabilities = self._service.model.engine.capabilities
        now = self._service.events.now()
        return data(
            encode(
                Hello(
                    live=True,
                    now=now,
                    wall=time.time(),
                    model=self._service.model.name,
                    slots=capabilities.num_slots,
                    blocks=capabilities.num_blocks,
                    charts=chart_infos(load_chart(name) for name in chart_names()),
                    machines=self._snapshot.machines,
                    strips=[strip_of(self._tracks.counts(now))],
                )
            )
        )

    async def next(self) -> bytes:
        await trio.sleep_until(self._due)
        await self._reader.lull(FRAME)
        now = trio.current_time()
        board = None
        if now >= self._next_board:
            board, self._next_board = self._slots.state(self._names()), now + BOARD
        news = self._reader.take()
        quiet = not (news.entries or news.details or news.lost)
        # Counted from when this one was due, not from when the step loop had time for it.
        self._due = now + IDLE if quiet else max(self._due + FRAME, now)
        return self._frame(news, board, self._service.events.now())

    def close(self) -> None:
        self._reader.close()

    def _frame(self, news: events.News, board: SlotsState | None, now: float) -> bytes:
        strips: list[Strip] = []
        illegal: list[Illegal] = []
        entries, tracks, stood = news.entries, self._tracks, self._stood
        here = tracks.here
        moves: list[tuple[Any, ...]] = []
        begun = others = 0
        for note in (*news.details, _LAST):
            end = min(note[0] - news.first, len(entries))
            for entry in entries[begun:end] if end > begun else ():  # there are thousands a second
                machine, name, states = entry[1], entry[2], entry[5]
                if machine == "request":
                    if here.get(name) is states:
                        continue
                    strips += map(strip_of, tracks.record(entry[0], machine, name, states, None))
                elif len(entry) > _PLAIN:
                    others += 1
                    strips += map(strip_of, tracks.record(entry[0], machine, name, states, entry[_PLAIN]))
                    continue
                else:
                    if stood.get((machine, name)) is states:
                        continue
                    stood[machine, name] = states
                moves.append(entry)
            begun = max(begun, end)
            if note is not _LAST:
                self._detail(note, strips, illegal)
        if news.lost:  # who ended in what is missing would go on running
            tracks.begin(None, snapshot(self._service))
            strips.append(strip_of(tracks.counts(now)))
        if len(stood) > MOST_KNOWN:
            stood.clear()
        plain = len(entries) - others
        kept = moves[:MOST_LEFT]
        if len(entries) <= MOST_STEPS:
            kept = [entry for entry in entries if len(entry) == _PLAIN]
        return data(
            encode(
                News(
                    now=now,
                    first=news.first,
                    lost=news.lost,
                    thinned=plain - len(kept),
                    steps=kept,
                    strips=strips,
                    illegal=tuple(illegal),
                    board=board,
                )
            )
        )

    def _detail(self, note: events.Note, strips: list[Strip], illegal: list[Illegal]) -> None:
        _, t, make, given = note
        # Of what comes with every step only what is shown is made.
        if make is planned:
            self._tracks.planned(rows_of(given[1]))
        elif make is arrival:
            self._tracks.arrived(given[0].id, given[1])
        elif make not in FOR_FILES:
            made = make(*given)
            if isinstance(made, schema.Illegal):
                illegal.append(forbidden(t, made))
            strips += map(strip_of, self._tracks.detail(t, made))


_PLAIN = 6
"""Fields of a step in the stream's ring; one that was read or is of a range has a value behind them."""

_LAST: events.Note = (1 << 62, 0.0, tuple, ())
"""Stands behind all records."""
