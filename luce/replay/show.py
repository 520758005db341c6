"""A trace as a timeline in a terminal: a lane for each request, steps and queue above them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

import attrs
from rich.text import Text

from luce.errors import printable
from luce.replay.tracks import Counts, Encode, Lost, Phase, Step, seen
from luce.trace.events import EventRecord, Range
from luce.trace.reader import FileStart, Item

__all__ = ["LOOKS", "Window", "record_line", "span_of", "timeline"]

LOOKS: Final = {
    "following": ("·", "dim"),
    "queued": (".", "yellow"),
    "encoding": ("e", "magenta"),
    "staging": ("▒", "blue"),
    "decoding": ("█", "green"),
    "parked": ("p", "red"),
    "ending": ("-", "dim"),
    "finished": ("|", "bold green"),
    "cancelled": ("x", "bold yellow"),
    "failed": ("!", "bold red"),
}
"""Of each phase, with the colour."""
_BARS = " ▁▂▃▄▅▆▇█"
_NAME = 24
"""Columns of a request's name."""


@attrs.frozen
class Window:
    """Seconds on the clock of the records, cut into columns."""

    start: float
    end: float
    columns: int

    def column(self, t: float) -> int:
        share = (t - self.start) / max(self.end - self.start, 1e-9)
        return min(max(int(share * self.columns), 0), self.columns - 1)


@attrs.define
class _Lane:
    cells: list[str]
    """A phase for each column, "" where it is not there."""
    phase: str
    since: int

    def until(self, column: int, phase: str) -> None:
        """The phase it is in lasts until a column, where another begins. One that is too short to see is not lost where
        it ends."""
        for at in range(self.since, column):
            self.cells[at] = self.phase
        self.cells[column] = phase
        self.phase, self.since = phase, column


@attrs.define
class _Board:
    window: Window
    lanes: dict[str, _Lane] = attrs.field(factory=dict)
    hidden: int = 0
    steps: list[int] = attrs.field(init=False)
    rows: list[int] = attrs.field(init=False)
    encodes: list[int] = attrs.field(init=False)
    waiting: list[int] = attrs.field(init=False)
    left: list[int] = attrs.field(init=False)
    lost: int = 0

    def __attrs_post_init__(self) -> None:
        for name in ("steps", "rows", "encodes", "waiting", "left"):
            setattr(self, name, [0] * self.window.columns)


def span_of(items: Iterable[Item]) -> tuple[float, float] | None:
    """Times of the first and the last record; None if there is none."""
    first = last = None
    for item in items:
        if not isinstance(item, FileStart):
            last = item[1]
            first = last if first is None else first
    return None if first is None or last is None else (first, last)


def timeline(items: Iterable[Item], window: Window, most: int) -> Iterator[Text]:
    """Lines of the timeline.

    Args:
        most: lanes; further requests are counted.
    """
    board = _Board(window)
    for one in seen(items):
        t = one.begun if isinstance(one, Encode) else one.launched if isinstance(one, Step) else one.t
        if t > window.end:
            if isinstance(one, Phase | Counts):
                break
            continue
        _draw(board, one, t, most)
    for lane in board.lanes.values():
        if lane.phase not in ("finished", "failed", "cancelled"):
            lane.until(window.columns - 1, lane.phase)
    yield from _lines(board)


def _draw(board: _Board, one: object, t: float, most: int) -> None:
    window = board.window
    column, early = window.column(t), t < window.start
    if isinstance(one, Phase):
        lane = board.lanes.get(one.id)
        if lane is not None:
            if early and one.ends:
                del board.lanes[one.id]
            else:
                lane.until(column, one.phase)
        elif early and one.ends:
            pass
        elif len(board.lanes) < most:
            board.lanes[one.id] = lane = _Lane([""] * window.columns, one.before or one.phase, column)
            lane.until(column, one.phase)
        elif one.before is None:
            board.hidden += 1
    elif early:
        pass
    elif isinstance(one, Step):
        board.steps[column] += 1
        board.rows[column] += one.rows
    elif isinstance(one, Encode):
        board.encodes[column] += 1
    elif isinstance(one, Counts):
        board.waiting[column] = max(board.waiting[column], one.waiting)
        board.left[column] = one.blocks_left
    elif isinstance(one, Lost):
        board.lost += one.records


def _lines(board: _Board) -> Iterator[Text]:
    window = board.window
    seconds = window.end - window.start
    scale = f"{seconds:.3f} s from {window.start:.3f}, {1000 * seconds / window.columns:.1f} ms a column"
    yield Text(f"{'':{_NAME}} {scale}", style="dim")
    for name, values in (
        ("steps", board.steps),
        ("rows", board.rows),
        ("encodes", board.encodes),
        ("waiting", board.waiting),
        ("blocks left", board.left),
    ):
        if any(values):
            yield _curve(name, values)
    for name, lane in board.lanes.items():
        line = Text(f"{printable(name)[-_NAME:]:>{_NAME}} ")
        for phase in lane.cells:
            character, style = LOOKS.get(phase, ("?", "")) if phase else (" ", "")
            line.append(character, style)
        yield line
    if board.hidden:
        yield Text(f"{'':{_NAME}} and {board.hidden} more requests; --lanes shows more", style="dim")
    if board.lost:
        yield Text(f"{'':{_NAME}} {board.lost} records are missing", style="bold red")
    legend = Text(f"{'':{_NAME}} ")
    for phase, (character, style) in LOOKS.items():
        legend.append(character, style)
        legend.append(f" {phase}  ", "dim")
    yield legend


def _curve(name: str, values: list[int]) -> Text:
    most = max(values)
    line = Text(f"{f'{name}, max {most}':>{_NAME}} ")
    line.append("".join(_BARS[-(-value * (len(_BARS) - 1) // most)] for value in values), "cyan")
    return line


def record_line(record: EventRecord, guards: Callable[[str], tuple[str, ...]], zero: float = 0.0) -> str:
    """One record, in one line.

    Args:
        guards: names of a chart's guards, by bit.
        zero: what its time counts from.
    """
    seq, t, machine, name, event, bits, states, value = record
    said = [guard for number, guard in enumerate(guards(machine)) if bits >> number & 1]
    where = f"{len(value.ids)} instances" if isinstance(value, Range) else ", ".join(states)
    if event == "read":
        where = f"= {value}"
    parts = [f"{seq:>9}", f"{t - zero:12.6f}", machine, str(name), event]
    line = "  ".join(part for part in parts if part)
    return printable(f"{line}{f'  [{chr(32).join(said)}]' if said else ''}  → {where}")
