"""ServeGen's clients: not requests but their statistics, from which requests are drawn.

A client is two files. ``…-trace.csv`` has one row for each window of ten minutes with the distribution of the time
between arrivals, ``…-dataset.json`` the distributions of lengths and picture counts for each window of some hours.
"""

from __future__ import annotations

import ast
import math
import os
import random
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from itertools import accumulate
from pathlib import Path

import attrs
import msgspec

from luce.errors import TraceFileError, quoted, reason
from luce.trace.traffic.request import MAX_TOKENS, TrafficRequest
from luce.trace.traffic.rows import lines

__all__ = ["Arrivals", "Lengths", "ServeGenClient", "read_servegen"]

WINDOW = 600.0
"""Seconds from one row to the next."""
MAX_DATASET = 1 << 26
"""Bytes."""
MAX_PICTURES = 1000
LEAST_SHAPE = 0.01
"""Far below any client of the published files; gaps of a smaller one are all but one 0."""

_USED = ("text_tokens", "image_tokens", "image_count", "output_tokens")
_NOT_SERVED = ("audio_tokens", "video_tokens", "audio_count", "video_count")


@attrs.frozen
class Arrivals:
    """The time between arrivals in one window."""

    start: float
    """Seconds; the window ends :data:`WINDOW` later."""
    rate: float
    """Mean requests a second; 0 is an empty window."""
    family: str
    """'Gamma', 'Weibull', or '' in an empty window."""
    shape: float

    def gap(self, rng: random.Random) -> float:
        """Seconds to the next arrival. Their mean is the window's: the scale in the file is that of the part of it
        in which anything came."""
        if self.family == "Gamma":
            return rng.gammavariate(self.shape, 1 / (self.rate * self.shape))
        return rng.weibullvariate(1 / (self.rate * math.gamma(1 + 1 / self.shape)), self.shape)


@attrs.frozen
class Lengths:
    """Values of one quantity and how often they come."""

    values: tuple[int, ...]
    cumulated: tuple[float, ...]
    """Sums of the probabilities up to each value; the last is 1 but for rounding."""

    def draw(self, rng: random.Random) -> int:
        at = bisect_right(self.cumulated, rng.random() * self.cumulated[-1])
        return self.values[min(at, len(self.values) - 1)]


@attrs.frozen
class ServeGenClient:
    """One client; draw requests from it with :meth:`requests`."""

    arrivals: tuple[Arrivals, ...]
    """Ascending."""
    dataset: tuple[tuple[float, Mapping[str, Lengths]], ...]
    """Window starts, ascending, and the distributions from there on, by the files' field names."""

    def requests(
        self, seed: int, *, start: float = 0.0, seconds: float = math.inf
    ) -> Iterator[TrafficRequest]:
        """Requests of the windows that begin in ``start`` … ``start + seconds``; arrivals count from ``start``. A seed
        gives the same ones every time.

        A prompt is its text and its pictures, at least one token. ``image_tokens`` is taken to be those of one picture.
        """
        rng = random.Random(seed)
        for window in self.arrivals:
            if not start <= window.start < start + seconds or not window.rate:
                continue
            now = window.start
            while (now := now + window.gap(rng)) < min(window.start + WINDOW, start + seconds):
                yield self._draw(rng, now, start)

    def _draw(self, rng: random.Random, now: float, start: float) -> TrafficRequest:
        fields = next(fields for since, fields in reversed(self.dataset) if since <= now)
        pictures = fields["image_count"].draw(rng)
        images = tuple(fields["image_tokens"].draw(rng) for _ in range(pictures))
        return TrafficRequest(
            arrival=now - start,
            prompt_tokens=max(fields["text_tokens"].draw(rng) + sum(images), 1),
            output_tokens=max(fields["output_tokens"].draw(rng), 1),
            images=images,
        )


def read_servegen(trace: str | os.PathLike[str], dataset: str | os.PathLike[str]) -> ServeGenClient:
    """A client of ServeGen's data folder, of the kinds that have text, or text and pictures.

    Raises:
        TraceFileError: names the file and the row, or the window and the field, and says what is wrong with it.
    """
    arrivals = tuple(_arrivals(trace))
    if not arrivals:
        raise TraceFileError(trace, "has no windows")
    lengths = tuple(_dataset(dataset))
    if not lengths or lengths[0][0] > arrivals[0].start:
        raise TraceFileError(dataset, f"has no window for the arrivals from {arrivals[0].start:g} s on")
    return ServeGenClient(arrivals, lengths)


def _arrivals(path: str | os.PathLike[str]) -> Iterator[Arrivals]:
    before = -math.inf
    for row, line in lines(path):
        cells = line.split(",")
        if len(cells) != 6:
            raise TraceFileError(
                path, f"has {len(cells)} cells; start, rate, cv, family, shape and scale are 6", row=row
            )
        start, rate, _, shape, scale = (_number(path, row, cell) for cell in cells if cell is not cells[3])
        family = cells[3]
        if family not in ("Gamma", "Weibull") and (family or rate):
            raise TraceFileError(path, f"the family must be Gamma or Weibull, not {quoted(family)}", row=row)
        if rate and not (shape >= LEAST_SHAPE and scale > 0):
            raise TraceFileError(
                path,
                f"shape must be at least {LEAST_SHAPE} and scale above 0, not {shape:g} and {scale:g}",
                row=row,
            )
        if start < before + WINDOW:
            raise TraceFileError(path, f"the window begins less than {WINDOW:g} s after that before", row=row)
        before = start
        yield Arrivals(start, rate, family, shape)


def _number(path: str | os.PathLike[str], row: int, cell: str) -> float:
    try:
        value = float(cell)
    except ValueError:
        value = math.nan
    if not 0 <= value < 1e12:
        raise TraceFileError(path, f"must be a number that is not negative, not {quoted(cell)}", row=row)
    return value


def _dataset(path: str | os.PathLike[str]) -> Iterator[tuple[float, Mapping[str, Lengths]]]:
    try:
        if Path(path).stat().st_size > MAX_DATASET:
            raise TraceFileError(path, f"has more than {MAX_DATASET} bytes")
        windows = msgspec.json.decode(Path(path).read_bytes(), type=dict[str, dict[str, str]])
    except OSError as error:
        raise TraceFileError(path, f"cannot be read: {reason(error)}") from None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise TraceFileError(path, reason(error)) from None
    before = -math.inf
    for name, fields in windows.items():
        if not (name.isascii() and name.isdigit() and len(name) <= 9 and int(name) > before):
            raise TraceFileError(path, f"window {quoted(name)} is no second after those before it")
        before = int(name)
        if unknown := fields.keys() - {*_USED, *_NOT_SERVED}:
            raise TraceFileError(path, f"window {name}: unknown field {quoted(min(unknown))}")
        for field in _NOT_SERVED:
            if field in fields and _lengths(path, name, field, fields[field]).values != (0,):
                raise TraceFileError(path, f"window {name}: {field} is not 0; text and pictures are read")
        if missing := [field for field in _USED if field not in fields]:
            raise TraceFileError(path, f"window {name}: {missing[0]} is missing")
        yield float(before), {field: _lengths(path, name, field, fields[field]) for field in _USED}


def _lengths(path: str | os.PathLike[str], window: str, field: str, text: str) -> Lengths:
    """A Python dict literal of values and probabilities."""
    where = f"window {window}: {field}"
    try:
        table = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError) as error:
        raise TraceFileError(path, f"{where} is no literal of a dict: {type(error).__name__}") from None
    if not isinstance(table, dict) or not table:
        raise TraceFileError(path, f"{where} must be a dict that is not empty, not {quoted(table)}")
    most = MAX_PICTURES if field == "image_count" else MAX_TOKENS
    for value, probability in table.items():
        if type(value) is not int or not 0 <= value <= most:
            raise TraceFileError(path, f"{where}: {quoted(value)} is no whole number from 0 to {most}")
        if type(probability) not in (int, float) or not 0 <= probability <= 1:
            raise TraceFileError(path, f"{where}: {quoted(probability)} is no probability")
    total = sum(table.values())
    if not math.isclose(total, 1, rel_tol=1e-6):
        raise TraceFileError(path, f"{where}: the probabilities sum to {total:g}, not to 1")
    return Lengths(tuple(table), tuple(accumulate(table.values())))
