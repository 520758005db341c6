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
from luce.actors.tracing import snapshot
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
"""Steps in a frame; of more, those that changed nothing are left out: a busy server's tokens."""
MOST_LEFT = 2000
"""Of those that are left then."""
MOST_KNOWN = 20_000
"""Machines of which it is remembered where they stood."""


class LiveEvents:
    """An :class:`luce.http.sse.EventSource` on a service's events. Close it when its page is gone."""

    def __init__(self, service: Service, slots: Slots, names: Callable[[], Mapping[str, str]]) -> None:
        """``names``: request ids by ids of answers."""
        self._service = service
        self._names = names
        self._slots = slots
        self._reader: EventReader = service.events.reader()
        self._snapshot = snapshot(service)
        self._tracks = Tracks(load_chart("block"), self._snapshot)
        self._stood: dict[tuple[str, str | int], tuple[str, ...]] = {}
        self._next_board = 0.0
        self._due = trio.current_time()

    def first(self) -> bytes:
        capabilities = self._service.model.engine.capabilities
        return data(
            encode(
                Hello(
                    live=True,
                    now=self._service.events.now(),
                    wall=time.time(),
                    model=self._service.model.name,
                    slots=capabilities.num_slots,
                    blocks=capabilities.num_blocks,
                    charts=chart_infos(load_chart(name) for name in chart_names()),
                    machines=self._snapshot.machines,
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
        details = iter(news.details)
        note = next(details, None)
        steps: list[tuple[Any, ...]] = []
        here = self._tracks.here
        for number, entry in enumerate(news.entries, news.first):
            while note is not None and note[0] <= number:
                self._detail(note, strips, illegal)
                note = next(details, None)
            if len(entry) == _PLAIN:
                steps.append(entry)
                if entry[1] != "request" or here.get(entry[2]) is entry[5]:
                    continue  # there are thousands a second of these
            told = self._tracks.record(entry[0], entry[1], entry[2], entry[5], _value(entry))
            strips += map(strip_of, told)
        while note is not None:
            self._detail(note, strips, illegal)
            note = next(details, None)
        kept = steps if len(steps) <= MOST_STEPS else self._moves(steps)
        return data(
            encode(
                News(
                    now=now,
                    first=news.first,
                    lost=news.lost,
                    thinned=len(steps) - len(kept),
                    steps=kept,
                    strips=strips,
                    illegal=tuple(illegal),
                    board=board,
                )
            )
        )

    def _moves(self, steps: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        """Without those whose machine stood there already."""
        stood = self._stood
        kept = []
        for step in steps:
            key = (step[1], step[2])
            if stood.get(key) is not step[5]:
                stood[key] = step[5]
                kept.append(step)
        if len(stood) > MOST_KNOWN:
            stood.clear()
        return kept[:MOST_LEFT]

    def _detail(self, note: events.Note, strips: list[Strip], illegal: list[Illegal]) -> None:
        _, t, make, given = note
        made = make(*given)
        if isinstance(made, schema.Illegal):
            illegal.append(forbidden(t, made))
        strips += map(strip_of, self._tracks.detail(t, made))


_PLAIN = 6
"""Fields of a step in the stream's ring; one that was read or is of a range has a value behind them."""


def _value(entry: tuple[Any, ...]) -> Any:
    return entry[_PLAIN] if len(entry) > _PLAIN else None
