"""Two traces side by side: where does each machine first do something else? Clock times do not count, nor who of two
machines came first.

Read in step with each other, so that what waits for its counterpart is little as long as the traces are alike.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from typing import Any

import attrs
import msgspec

from luce.errors import TraceFileError
from luce.replay.check import charts_of
from luce.trace.events import EventRecord, Range
from luce.trace.reader import FileStart, Item
from luce.trace.schema import Arrival, Gap, Header, Planned

__all__ = ["Difference", "differences", "header_differences"]

PENDING = 10_000
"""Steps of one machine that may wait for the other trace's, which then counts as having none."""

Key = tuple[str, str | int]


@attrs.frozen
class Did:
    """One thing that a machine did, or a plan."""

    seq: int
    what: str
    """For people."""
    same: dict[str, Any]
    """Its parts by their names. Equal where both did the same."""


@attrs.frozen
class Difference:
    """The first of one machine."""

    machine: str
    id: str | int
    place: int
    """How many of its steps are alike before."""
    one: Did | None
    """None: it does nothing more there."""
    other: Did | None


@attrs.define
class _Pair:
    alike: int = 0
    waiting: tuple[deque[Did], deque[Did]] = attrs.field(factory=lambda: (deque(), deque()))
    over: bool = False


def differences(one: Iterable[Item], other: Iterable[Item]) -> Iterator[Difference]:
    """The first difference of each machine, and of the plans, in the order in which they are found. Requests are told
    apart by the order of their arrival, their names being drawn anew in each run.

    Raises:
        TraceFileError: a trace has a gap: what lies behind it cannot be compared.
    """
    pairs: dict[Key, _Pair] = {}
    for both in zip_longest(_deeds(one), _deeds(other)):
        for side, found in enumerate(both):
            if found is None:
                continue
            key, did = found
            pair = pairs.get(key)
            if pair is None:
                pair = pairs[key] = _Pair()
            if pair.over:
                continue
            mine, theirs = pair.waiting[side], pair.waiting[1 - side]
            if not theirs:
                mine.append(did)
                if len(mine) > PENDING:
                    yield _over(key, pair, side, mine[0], None)
                continue
            counterpart = theirs.popleft()
            if counterpart.same == did.same:
                pair.alike += 1
            else:
                yield _over(key, pair, side, did, counterpart)
    for key, pair in pairs.items():
        for side, waiting in enumerate(pair.waiting):
            if waiting and not pair.over:
                yield _over(key, pair, side, waiting[0], None)


def _over(key: Key, pair: _Pair, side: int, mine: Did, theirs: Did | None) -> Difference:
    pair.over = True
    for waiting in pair.waiting:
        waiting.clear()
    if theirs is not None:
        mine, theirs = _beside(mine, theirs), _beside(theirs, mine)
    one, other = (mine, theirs) if side == 0 else (theirs, mine)
    return Difference(*key, pair.alike, one, other)


def _beside(did: Did, other: Did) -> Did:
    """The same, saying also those of its parts that the other one has otherwise."""
    apart = [
        f"{name} {_said(value, other.same.get(name))}"
        for name, value in did.same.items()
        if name not in _IN_WORDS and value != other.same.get(name)
    ]
    return attrs.evolve(did, what="; ".join((did.what, *apart)))


_IN_WORDS = ("event", "states")
"""Parts that :attr:`Did.what` says anyway."""


def _said(value: Any, other: Any) -> str:
    """Of a list the first entry that differs, with its place."""
    if isinstance(value, Range):
        names = ("of", "guards", "to")
        return ", ".join(
            f"{name} {_said(_listed(mine), _listed(getattr(other, field, None)))}"
            for name, field, mine in zip(names, ("ids", "bits", "after"), value, strict=True)
            if _listed(mine) != _listed(getattr(other, field, None))
        )
    if isinstance(value, list | tuple) and isinstance(other, list | tuple):
        place = next(
            (k for k, pair in enumerate(zip(value, other, strict=False)) if pair[0] != pair[1]), None
        )
        if place is None:  # one begins as the other
            return f"has {len(value)}"
        return f"[{place}] {_said(value[place], other[place])}"
    if isinstance(value, msgspec.Struct) and isinstance(other, msgspec.Struct):
        value, other = msgspec.structs.asdict(value), msgspec.structs.asdict(other)
    if isinstance(value, dict) and isinstance(other, dict):
        return ", ".join(
            f"{name} {_said(mine, other.get(name))}"
            for name, mine in value.items()
            if mine != other.get(name)
        )
    return "none" if value is None or value == "" else str(value)


@functools.lru_cache(maxsize=4096)
def _guards(bits: int, names: tuple[str, ...]) -> str:
    """Those that held, one that the chart does not know by its bit."""
    held = [number for number in range(bits.bit_length()) if bits >> number & 1]
    return " ".join([names[number] if number < len(names) else f"bit {number}" for number in held])


def _listed(array: Any) -> list[int] | None:
    return None if array is None else array.tolist()


def _deeds(items: Iterable[Item]) -> Iterator[tuple[Key, Did]]:
    orders: dict[str | int, int] = {}
    """Of requests that have arrived and not yet begun, and of those that live."""
    path: object = "the trace"
    guards: dict[str, tuple[str, ...]] = {}
    for item in items:
        if isinstance(item, EventRecord):
            seq, _, machine, name, event, bits, states, value = item
            if machine == "request":
                name = orders.get(name, name)
            said = _guards(bits, guards.get(machine, ())) if bits else ""
            parts = {"event": event, "guards": said, "states": states, "value": value}
            yield (machine, name), Did(seq, f"{event} → {', '.join(states)}", parts)
        elif isinstance(item, FileStart):
            path = item.path
            charts = charts_of(item.header, item.path)
            guards = {name: chart.guard_order for name, chart in charts.items()}
        elif isinstance(item[2], Arrival):
            orders[item[2].id] = item[2].order
        elif isinstance(item[2], Planned):
            yield ("plan", ""), Did(item[0], _plan(item[2]), msgspec.structs.asdict(item[2]))
        elif isinstance(item[2], Gap):
            raise TraceFileError(
                str(path), f"{item[2].lost} records before {item[0]} are missing; nothing compares behind"
            )


def _plan(plan: Planned) -> str:
    parts = [
        f"{'segments' if name == 'slots' else name} {len(found)}"
        for name in ("grants", "resumes", "parks", "fails", "slots")
        if (found := getattr(plan, name))
    ]
    return ", ".join(parts) or "nothing"


def header_differences(one: Header, other: Header) -> list[str]:
    """What was set otherwise, or ran on something else: names of header fields and of entries in them."""
    found = [field for field in ("model", "fingerprint") if getattr(one, field) != getattr(other, field)]
    for field in ("hashes", "options", "capabilities", "versions"):
        mine, theirs = getattr(one, field), getattr(other, field)
        found += [
            f"{field}.{name}"
            for name in sorted(mine.keys() | theirs.keys())
            if mine.get(name) != theirs.get(name)
        ]
    return found
