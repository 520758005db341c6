"""Blocks of a trace: records as columns, so that millions of them take little time and few bytes.

A block holds the records from one number on without a gap. Four columns have an entry for each: its time (float64), who
(a number for the instance), what (a number for machine, event, guard bits and configuration together) and a check
value. Behind them stands, in MessagePack, whatever is rarer: names of numbers that are new, values, and details.

What a block needs to be read stands in it and in the blocks before it in the same file. The check value of a record
is a hash of its number, time, who and what; one that was removed, moved or changed shows by it. Values have their own.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from luce.errors import reason
from luce.trace.events import ANY, EventRecord, Range
from luce.trace.objects import check_objects
from luce.trace.plain_values import check_depth
from luce.trace.schema import MOST_TIME, Arrival, Detail, Planned, Time, Unknown

__all__ = ["MOST_RECORDS", "BlockReader", "BlockWriter", "Located"]

MOST_RECORDS = 4096
"""In a block, which bounds what a reader holds."""
_HEAD = struct.Struct("<QI")
"""Number of the first record, and how many there are."""
_WIDTHS = (8, 4, 4, 2)
_STEP = len(EventRecord._fields) - 2
"""Fields of a record in the ring, which has no number there; where there is a value it has one more."""
_MOST_QUICK = 1 << 14
"""Of what is found by address."""

_K = tuple(
    np.uint64(k)
    for k in (
        0x9E3779B97F4A7C15,
        0xBF58476D1CE4E5B9,
        0x94D049BB133111EB,
        0xD6E8FEB86659FD93,
        0xFF51AFD7ED558CCD,
    )
)
_HALF, _KEPT = np.uint64(31), np.uint64(48)

Located = tuple[int, float, Any]
"""A detail: the number of the record that it stands before, its time, and what it says."""


class _Tail(msgspec.Struct, array_like=True):
    who: list[str | int]
    what: list[tuple[str, str, int, tuple[str, ...]]]
    values: list[tuple[int, Any]]
    """(place in the block, value)."""
    details: list[tuple[int, Time, Any]]
    sums: list[int] = []
    """Of each value a checksum that begins with its record's number. Not in files of an earlier luce."""


_tails = msgspec.msgpack.Decoder(_Tail)


def _plain(value: Any) -> Any:
    """Arrays as bytes, 4 a number where they are wide: there are fewer than 2³² blocks."""
    if isinstance(value, np.ndarray):
        return (value if value.itemsize == 1 else value.astype("<u4")).tobytes()
    if isinstance(value, np.generic):
        return value.item()
    raise NotImplementedError(type(value).__name__)


_encode = msgspec.msgpack.Encoder(enc_hook=_plain).encode


def _sum(packed: bytes, seq: int) -> int:
    return zlib.crc32(packed, seq & 0xFFFFFFFF)


def _checks(first: int, columns: Sequence[NDArray[Any]]) -> NDArray[np.uint16]:
    times, who, what = columns[:3]
    mixed = np.arange(first, first + len(times), dtype=np.uint64)
    mixed *= _K[0]
    mixed ^= times.view(np.uint64) * _K[1]
    mixed ^= np.multiply(who, _K[2], dtype=np.uint64)
    mixed ^= np.multiply(what, _K[3], dtype=np.uint64)
    mixed ^= mixed >> _HALF
    mixed *= _K[4]
    mixed >>= _KEPT
    return mixed.astype("<u2")


class BlockWriter:
    """Makes the blocks of one file."""

    def __init__(self) -> None:
        self._who = _Numbers()
        self._what = _Numbers()
        self._quick: dict[tuple[Any, ...], int] = {}
        """The same with a configuration's address for its states: machines of a chart share each, and its hash is that
        of all names in it."""
        self._held: list[object] = []
        """What has these addresses."""

    def block(self, first: int, entries: Sequence[tuple[Any, ...]], details: Sequence[Located]) -> bytes:
        """Records from number ``first`` on, as :class:`luce.trace.events.News` has them, and details among them."""
        count = len(entries)
        if not count:
            return _HEAD.pack(first, 0) + _encode(([], [], [], details))
        times, machines, ids, events, bits, configurations = tuple(zip(*entries))[:_STEP]  # noqa: B905 - lengths differ
        columns: list[NDArray[Any]] = [
            np.fromiter(times, "<f8", count),
            np.fromiter(map(self._who.__getitem__, ids), "<u4", count),
            self._whats(machines, events, bits, configurations),
        ]
        values, sums, lengths = [], list[int](), bytes(map(len, entries))
        at = lengths.find(_STEP + 1)
        while at >= 0:
            packed = _encode(_stored(entries[at][_STEP]))
            values.append((at, msgspec.Raw(packed)))
            sums.append(_sum(packed, first + at))
            at = lengths.find(_STEP + 1, at + 1)
        columns.append(_checks(first, columns))
        pieces = [_HEAD.pack(first, count)]
        # Times grow slowly: differences of their bits are small. Bytes of one weight stand together.
        columns[0] = np.diff(columns[0].view("<i8"), prepend=np.int64(0))
        pieces += [_shuffled(column) for column in columns]
        names = self._who.take_new(), self._what.take_new()
        pieces.append(_encode((*names, values, details, sums) if sums else (*names, values, details)))
        return b"".join(pieces)

    def _whats(
        self,
        machines: Sequence[str],
        events: Sequence[str],
        bits: Sequence[int],
        configurations: Sequence[tuple[str, ...]],
    ) -> NDArray[np.uint32]:
        quick = self._quick
        if len(quick) > _MOST_QUICK:
            quick.clear()
            self._held.clear()
        while True:
            names = zip(machines, events, bits, map(id, configurations), strict=True)
            try:
                return np.fromiter(map(quick.__getitem__, names), np.dtype("<u4"), len(machines))
            except KeyError:  # once for many blocks: what machines do is soon known
                for name in zip(machines, events, bits, configurations, strict=True):
                    key = (*name[:3], id(name[3]))
                    if key not in quick:
                        quick[key] = self._what[name]
                        self._held.append(name[3])


class _Numbers(dict[Any, int]):
    """Numbers of names, from zero in the order in which they are first asked for."""

    def __init__(self) -> None:
        super().__init__()
        self._new: list[Any] = []

    def __missing__(self, name: Any) -> int:
        number = self[name] = len(self)
        self._new.append(name)
        return number

    def take_new(self) -> list[Any]:
        """Those that came since the last time."""
        new, self._new = self._new, []
        return new


def _shuffled(column: NDArray[Any]) -> bytes:
    raw, width = column.view(np.uint8), column.itemsize
    return b"".join([raw[weight::width].tobytes() for weight in range(width)])  # a transposed copy is slower


class BlockReader:
    """Reads the blocks of one file, in their order."""

    def __init__(self) -> None:
        self._who: list[str | int] = []
        self._what: list[tuple[str, str, int, tuple[str, ...]]] = []

    def read(self, data: bytes) -> tuple[int, Iterator[EventRecord | Located]]:
        """The number of the first record; and the records, each behind the details that stand before it.

        Raises:
            ValueError: it is no block, or not the next one. The iterator raises it when it comes to a record that was
                changed, and says which.
        """
        if len(data) < _HEAD.size:
            raise ValueError("a block ends in its head")
        first, count = _HEAD.unpack_from(data)
        at = _HEAD.size
        if len(data) < at + count * sum(_WIDTHS):
            raise ValueError(f"a block of {count} records ends within its columns")
        if count > MOST_RECORDS:
            raise ValueError(f"a block of {count} records; {MOST_RECORDS} is the most")
        columns = []
        for width in _WIDTHS:
            raw = np.frombuffer(data, np.uint8, count * width, at).reshape(width, count)
            columns.append(np.ascontiguousarray(raw.T).view(f"<u{width}").reshape(count))
            at += count * width
        columns[0] = np.cumsum(columns[0].view("<i8"), dtype="<i8").view("<f8")
        odd = np.flatnonzero(~(np.abs(columns[0]) <= MOST_TIME))
        if len(odd):
            raise ValueError(f"record {first + int(odd[0])} has no time: {columns[0][odd[0]]} s")
        rest = memoryview(data)[at:]
        check_objects(rest)
        try:
            tail = _tails.decode(rest)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ValueError(f"a block's names cannot be read: {reason(error)}") from None
        self._who += tail.who
        self._what += [(machine, event, bits, tuple(states)) for machine, event, bits, states in tail.what]
        if count and (columns[1].max() >= len(self._who) or columns[2].max() >= len(self._what)):
            raise ValueError("a block refers to names that the file does not have")
        return first, self._records(first, columns, tail)

    def _records(
        self, first: int, columns: Sequence[NDArray[Any]], tail: _Tail
    ) -> Iterator[EventRecord | Located]:
        values = dict(tail.values)
        if tail.sums and len(tail.sums) != len(tail.values):
            raise ValueError("a block has other numbers of values and of their checksums")
        altered = {
            place
            for (place, value), made in zip(tail.values, tail.sums, strict=False)
            if _sum(_encode(value), first + place) != made
        }
        details = iter([(seq, t, _detail(raw)) for seq, t, raw in tail.details])
        detail = next(details, None)
        # Numbers of records that were removed or moved are wrong from there on: only the first one means something.
        wrong = np.flatnonzero(_checks(first, columns) != columns[3])
        broken = int(wrong[0]) if len(wrong) else -1
        who, what = self._who, self._what
        rows = zip(*(column.tolist() for column in columns[:3]), strict=True)
        for place, (t, instance, step) in enumerate(rows):
            seq = first + place
            while detail is not None and detail[0] <= seq:
                yield detail
                detail = next(details, None)
            if place == broken or place in altered:
                raise ValueError(
                    f"record {seq} is not the one that was written: removed, moved, doubled or changed"
                )
            machine, event, bits, states = what[step]
            value = values.get(place)
            if who[instance] == ANY:
                value = _range(value)
            elif value is not None and not isinstance(value, int):
                raise ValueError(f"record {seq} has a value that is no number")
            yield EventRecord(seq, t, machine, who[instance], event, bits, states, value)
        while detail is not None:
            yield detail
            detail = next(details, None)


def _stored(value: Any) -> Any:
    return tuple(value) if isinstance(value, Range) else value


def _range(value: Any) -> Range:
    """What :meth:`luce.trace.events.EventStream.observe_range` recorded."""
    try:
        ids, bits, after = value
        found = np.frombuffer(ids, "<u4").astype(np.intp)
        states = np.frombuffer(after, np.uint8)
        answers = None if bits is None else np.frombuffer(bits, np.uint8)
    except (TypeError, ValueError):
        raise ValueError("a record of a range cannot be read") from None
    if len(states) != len(found) or (answers is not None and len(answers) != len(found)):
        raise ValueError("a record of a range has columns of different lengths")
    return Range(found, answers, states)


def _detail(raw: Any) -> Detail | Unknown:
    try:
        known: Detail = msgspec.convert(raw, Detail)
    except msgspec.ValidationError as error:
        tag = raw.get("type") if isinstance(raw, dict) else None
        if isinstance(tag, str) and "Invalid value" in str(error) and "$.type" in str(error):
            return Unknown(tag)
        raise ValueError(f"a detail cannot be read: {error}") from None
    try:
        if isinstance(known, Arrival):
            check_depth(known.sampling)
            check_depth(known.form)
        elif isinstance(known, Planned):
            known.check()
    except ValueError as error:
        raise ValueError(f"a detail cannot be read: {error}") from None
    return known
