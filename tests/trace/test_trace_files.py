"""Trace files: what is written is read, whatever becomes of a file on the way is told or read up to the break."""

from __future__ import annotations

import errno
import logging
import math
import os
import struct
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import msgspec
import numpy as np
import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from luce.errors import ConfigError, TraceFileError
from luce.trace.columns import MOST_RECORDS, BlockReader, BlockWriter
from luce.trace.events import ANY, EventRecord, EventStream, News, Range
from luce.trace.files import SUFFIX, Limits, TraceFiles, trace_files
from luce.trace.frames import MAGIC, Frame, FrameKind, frame, frames
from luce.trace.objects import MOST_OBJECTS, check_objects
from luce.trace.reader import FileStart, TraceFile, read_header, read_trace, trace_paths
from luce.trace.recorder import Recorder
from luce.trace.schema import (
    VERSION,
    Arrival,
    Gap,
    Landed,
    LiveMachine,
    Picture,
    Planned,
    Run,
    Snapshot,
    Unknown,
)
from tests.trace.recording import header, items_of, records_of, written

FLOWING = ("live", "phase", "decoding", "client", "flowing")
EMPTY = Snapshot((), {})


def record(seq: int, event: str = "token", name: str | int = "r0", **changes: Any) -> EventRecord:
    return EventRecord(seq, seq / 8, "request", name, event, 0, FLOWING)._replace(**changes)


RECORDS = [
    record(7),
    record(8, "client.full", guards=5),
    EventRecord(9, 1.125, "loop", 0, "turn.done", 0, ("open",)),
    EventRecord(10, 1.25, "memory", "park", "read", 0, (), None),
    EventRecord(11, 1.25, "memory", "park", "read", 0, (), 12345),
    record(12, name="0"),
    record(13, name=0),
]
DECODE = Run(1, "decode", 1, "last sampled", True, None)
DETAILS = [
    (7, 0.5, Arrival("r0", 0, 0.25, 3, b"d" * 16, {"seed": 3}, (Picture(b"x", 4, (2, 2), 1),))),
    (
        9,
        1.0,
        Planned(
            True,
            grants=((3, 1),),
            slots=(1,),
            starts=(5,),
            runs=(Run(1, "decode", 1, "last sampled", True, None),),
        ),
    ),
    (14, 2.0, Landed(4, 0.5, ((1, (7, 8)),))),
]


def test_what_is_written_is_read(tmp_path: Path) -> None:
    ids, bits, after = np.array([3, 900_000]), np.array([1, 0], np.uint8), np.array([2, 2], np.uint8)
    ranges = [
        EventRecord(14, 2.5, "block", ANY, "release", 0, (), Range(ids, bits, after)),
        EventRecord(15, 2.5, "block", ANY, "alloc", 0, (), Range(ids, None, after)),
    ]
    snapshot = Snapshot((LiveMachine("request", "r9", FLOWING),), {"block": b"\0\1"})
    path = written(tmp_path, RECORDS + ranges, DETAILS, snapshot, content=True)
    start, *rest = items_of(path)
    assert isinstance(start, FileStart)
    assert (start.snapshot, start.header.content, start.header.first) == (snapshot, True, 7)
    assert [item for item in rest if isinstance(item, EventRecord)] == RECORDS + ranges
    assert [item for item in rest if not isinstance(item, EventRecord)] == DETAILS
    assert [rest.index(detail) for detail in DETAILS] == [0, 3, len(rest) - 3], "each before its record"


names = st.one_of(st.integers(0, 3), st.sampled_from(["", "r0", "r1", "ünï", "x" * 300]))
entries = st.lists(
    st.tuples(
        st.floats(0, 1e9),
        st.sampled_from(["request", "loop"]),
        names.filter(lambda name: name != ANY),
        st.sampled_from(["a", "b.c"]),
        st.integers(0, 2**15),
        st.sampled_from([(), ("x",), FLOWING]),
    ),
    max_size=40,
)


@given(st.lists(entries, max_size=4), st.integers(0, 2**40))
@settings(deadline=None, max_examples=150)
def test_blocks_round_trip(blocks: list[list[tuple[Any, ...]]], first: int) -> None:
    writer, reader = BlockWriter(), BlockReader()
    for block in blocks:
        at, items = reader.read(writer.block(first, block, []))
        assert at == first
        assert list(items) == [EventRecord(first + place, *entry) for place, entry in enumerate(block)]
        first += len(block)


# -- one record removed, moved, doubled or changed, with every checksum around it made right again ------


def tampered(path: Path, change: Callable[[list[list[Any]]], None]) -> None:
    """Rewrites the columns of a file's only block."""
    with path.open("rb") as file:
        kept = [one for one in frames(file, "") if not hasattr(one, "kind") or one.kind != FrameKind.BLOCK]
        file.seek(0)
        (block,) = [one for one in frames(file, "") if getattr(one, "kind", 0) == FrameKind.BLOCK]
    data = block.data  # type: ignore[union-attr]
    first, count = struct.unpack_from("<QI", data)
    at, columns = 12, []
    for width in (8, 4, 4, 2):
        raw = np.frombuffer(data, np.uint8, count * width, at).reshape(width, count)
        columns.append(np.ascontiguousarray(raw.T).view(f"<u{width}").reshape(count))
        at += count * width
    columns[0] = np.cumsum(columns[0].view("<i8")).view("<u8")
    rows = [list(row) for row in zip(*(column.tolist() for column in columns), strict=True)]
    change(rows)
    pieces = [struct.pack("<QI", first, len(rows))]
    for place, width in enumerate((8, 4, 4, 2)):
        column = np.array([row[place] for row in rows], f"<u{width}")
        if place == 0:
            column = np.diff(column.view("<i8"), prepend=np.int64(0)).view("<u8")
        pieces.append(column.view(np.uint8).reshape(len(rows), width).T.tobytes())
    made = MAGIC + b"".join(frame(FrameKind(one.kind), one.data) for one in kept)  # type: ignore[union-attr]
    path.write_bytes(made + frame(FrameKind.BLOCK, b"".join(pieces) + data[at:]))


LONG = [
    record(seq, name=f"r{seq % 3}", event="token" if seq % 5 else "chunk.done") for seq in range(100, 140)
]


@pytest.mark.parametrize("kind", ["removed", "swapped", "doubled", "time", "who", "what"])
@given(place=st.integers(0, len(LONG) - 2))
@settings(deadline=None, max_examples=len(LONG), derandomize=True)
def test_a_record_that_was_tampered_with_is_named(
    tmp_path_factory: pytest.TempPathFactory, kind: str, place: int
) -> None:
    def change(rows: list[list[Any]]) -> None:
        if kind == "removed":
            del rows[place]
        elif kind == "swapped":
            rows[place], rows[place + 1] = rows[place + 1], rows[place]
        elif kind == "doubled":
            rows.insert(place, list(rows[place]))
        elif kind == "time":
            rows[place][0] += 1
        else:
            column, other = (1, 3) if kind == "who" else (2, 2)
            rows[place][column] = (rows[place][column] + 1) % other

    path = written(tmp_path_factory.mktemp("trace"), LONG)
    assert records_of(path) == LONG
    tampered(path, lambda rows: None)
    assert records_of(path) == LONG, "the trap: it is the change that is found"
    tampered(path, change)
    # A doubled record is the right one where it stands first.
    named = 100 + place + (kind == "doubled")
    with pytest.raises(TraceFileError, match=rf"byte \d+: record {named} is not the one that was written"):
        records_of(path)


# -- files that are broken ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A small file, of two blocks."""
    directory = tmp_path_factory.mktemp("whole")
    small = header(charts={}, hashes={})
    files = TraceFiles(directory, small, Limits(1 << 30), EMPTY, 7, 0.0)
    stream = EventStream(lambda: 1.0)
    for _ in range(7):
        stream.observe(("request", "r0", "token", 0, FLOWING))
    for start in (0, 3):
        first, entries, _ = stream.since(start)
        files.write(News(7 + first, entries[: 3 if start == 0 else 4], [], 0), None, 0.0)
    files.close()
    return (directory / f"run-000000{SUFFIX}").read_bytes()


def test_a_file_cut_anywhere_is_read_up_to_the_cut(whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / f"cut{SUFFIX}"
    found, ends = [], frame_ends(whole)[1:]  # a header alone is nothing yet
    for length in range(len(whole) + 1):
        path.write_bytes(whole[:length])
        warnings: list[str] = []
        items = list(read_trace([path], warnings))
        found.append(sum(isinstance(item, EventRecord) for item in items))
        assert bool(warnings) == (length not in ends), length
        if warnings:
            assert str(path) in warnings[0] and "breaks off at byte" in warnings[0]
    assert found == sorted(found) and set(found) == {0, 3, 7}


def frame_ends(data: bytes) -> list[int]:
    at, ends = len(MAGIC), []
    while at < len(data):
        at += 16 + struct.unpack_from("<I", data, at)[0]
        ends.append(at)
    return ends


def test_zeros_behind_the_last_frame_are_a_break(whole: bytes, tmp_path: Path) -> None:
    """What a power cut leaves of a file whose length was written and whose bytes were not."""
    path = tmp_path / f"zeros{SUFFIX}"
    path.write_bytes(whole + bytes(5000))
    warnings: list[str] = []
    assert sum(isinstance(item, EventRecord) for item in read_trace([path], warnings)) == 7
    assert f"byte {len(whole)}" in warnings[0]
    path.write_bytes(whole + bytes(5000) + b"x")
    with pytest.raises(TraceFileError, match="the head of a frame is damaged"):
        items_of(path)


def test_any_changed_byte_is_found_with_its_place(whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / f"changed{SUFFIX}"
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x10]) + whole[place + 1 :])
        with pytest.raises(TraceFileError, match=r"byte \d+: ") as caught:
            items_of(path)
        assert str(path) in str(caught.value)
        named = int(str(caught.value).split("byte ")[1].split(":")[0])
        assert named <= place < named + 4000


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", None),
        (b"PK\x03\x04 and more", "this is no trace of luce"),
        (b'{"timestamp": 1}\n', "this is no trace of luce"),
        (MAGIC.replace(b"\r\n", b"\n") + b"rest", "line ends were changed"),
        (MAGIC + frame(FrameKind.BLOCK, b""), "the first frame is no header"),
        (MAGIC + frame(FrameKind.HEADER, b"\xc1"), "byte 14: "),
        (
            MAGIC + frame(FrameKind.HEADER, msgspec.msgpack.encode({"version": 99})),
            "version 99, and this luce reads 1",
        ),
        (MAGIC + frame(FrameKind.HEADER, msgspec.msgpack.encode({"version": 1})), "missing required field"),
    ],
)
def test_foreign_files_are_refused(data: bytes, said: str | None, tmp_path: Path) -> None:
    path = tmp_path / "some"
    path.write_bytes(data)
    if said is None:
        with pytest.raises(TraceFileError, match="breaks off within its header"):
            read_header(path)
        return
    with pytest.raises(TraceFileError, match=said) as caught:
        items_of(path)
    assert str(path) in str(caught.value)


def test_a_frame_that_unpacks_to_more_than_it_says_takes_no_memory(tmp_path: Path) -> None:
    packed = zlib.compress(bytes(1 << 26), 9)
    head = struct.pack("<III", len(packed), FrameKind.HEADER << 29 | 10, zlib.crc32(packed))
    path = tmp_path / "bomb"
    path.write_bytes(MAGIC + head + struct.pack("<I", zlib.crc32(head)) + packed)
    with pytest.raises(TraceFileError, match="does not unpack to the 10 bytes"):
        items_of(path)


def test_frames_of_a_later_luce_are_passed_over_as_they_are(tmp_path: Path) -> None:
    packed = zlib.compress(bytes(1 << 26), 9)
    head = struct.pack("<III", len(packed), 7 << 29 | 1 << 26, zlib.crc32(packed))
    path = written(tmp_path, RECORDS)
    later = head + struct.pack("<I", zlib.crc32(head)) + packed
    path.write_bytes(path.read_bytes() + later)
    tracemalloc.start()
    try:
        assert records_of(path) == RECORDS
        assert tracemalloc.get_traced_memory()[1] < 1 << 22, "not unpacked"
    finally:
        tracemalloc.stop()
    path.write_bytes(path.read_bytes()[:-1])
    (warning,) = warnings_of(path)
    assert "breaks off" in warning
    path.write_bytes(path.read_bytes()[:-1] + b"??")
    with pytest.raises(TraceFileError, match="is damaged"):
        records_of(path)


def warnings_of(path: Path) -> list[str]:
    said: list[str] = []
    for _ in read_trace([path], said):
        pass
    return said


def test_a_reader_may_take_smaller_frames_only(tmp_path: Path) -> None:
    path = written(tmp_path, RECORDS, [(8, 1.0, Arrival("r", 0, 0.0, 1, b"", {}, token_ids=bytes(1 << 20)))])
    assert [item for item in TraceFile(path, most_frame=1 << 21) if isinstance(item, EventRecord)] == RECORDS
    with pytest.raises(
        TraceFileError, match=r"^upload: byte \d+: a frame of 10\d{5} bytes; 1048576 is the most"
    ):
        list(TraceFile(path, most_frame=1 << 20, name="upload"))


@pytest.mark.parametrize("where", ["header", "snapshot", "block"])
def test_a_frame_of_very_many_small_values_is_refused_before_they_are_made(
    where: str, tmp_path: Path
) -> None:
    many = b"\xdd" + struct.pack(">I", 1 << 22) + b"\x90" * (1 << 22)
    path = written(tmp_path, RECORDS)
    with path.open("rb") as file:
        head, snapshot = [one for one in frames(file, "") if isinstance(one, Frame)][:2]
    kept = [frame(FrameKind.HEADER, head.data), frame(FrameKind.SNAPSHOT, snapshot.data)]
    made = {
        "header": [frame(FrameKind.HEADER, many)],
        "snapshot": [kept[0], frame(FrameKind.SNAPSHOT, many)],
        "block": [*kept, frame(FrameKind.BLOCK, struct.pack("<QI", 7, 0) + many)],
    }[where]
    path.write_bytes(MAGIC + b"".join(made))
    with pytest.raises(TraceFileError, match=f"more than {MOST_OBJECTS} values"):
        items_of(path)


def test_a_block_of_more_records_than_writers_make_is_refused() -> None:
    entries = [(1.0, "request", "r", "token", 0, FLOWING)] * (MOST_RECORDS + 1)
    BlockReader().read(BlockWriter().block(0, entries[1:], []))
    with pytest.raises(ValueError, match=f"a block of {MOST_RECORDS + 1} records"):
        BlockReader().read(BlockWriter().block(0, entries, []))


values = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(), st.text(), st.binary()
    ),
    lambda inner: st.one_of(st.lists(inner), st.dictionaries(st.integers(0, 2**40) | st.text(), inner)),
)


@given(values, st.sampled_from([0, 1, 255, 256, 65_535, 65_536]))
@settings(deadline=None, max_examples=100)
def test_values_are_counted_as_they_are_made(value: Any, length: int) -> None:
    def count(one: Any) -> int:
        if isinstance(one, dict):
            return 1 + sum(count(key) + count(inside) for key, inside in one.items())
        return 1 + sum(map(count, one)) if isinstance(one, list) else 1

    held = [value, "x" * length, bytes(length), msgspec.msgpack.Ext(3, bytes(length)), [None] * (length >> 4)]
    packed, there = msgspec.msgpack.encode(held), count(held)
    check_objects(packed, there)
    with pytest.raises(ValueError, match="values"):
        check_objects(packed, there - 1)
    for cut in range(1, min(len(packed), 20)):
        check_objects(packed[:-cut], there)


def test_kinds_of_a_later_luce_are_passed_over(tmp_path: Path) -> None:
    class Later(msgspec.Struct, tag="later"):
        what: int

    path = written(tmp_path, RECORDS, [(8, 1.0, Later(3))])
    path.write_bytes(path.read_bytes() + frame(FrameKind.HEADER, b"")[:0])
    assert [item for item in items_of(path)[1:] if not isinstance(item, EventRecord)] == [
        (8, 1.0, Unknown("later"))
    ]
    assert records_of(path) == RECORDS


def test_a_value_that_was_changed_or_moved_is_named() -> None:
    """Ids, guards' answers and states of a range, and what was read of free memory."""
    ids, bits, after = np.arange(3), np.array([0, 1, 0], np.uint8), np.array([2, 2, 1], np.uint8)
    ranges = [
        EventRecord(seq, seq / 8, "block", ANY, "free", 0, (), Range(ids + seq, bits, after))
        for seq in (5, 6)
    ]
    records = [*ranges, EventRecord(7, 1.0, "memory", "park", "read", 0, (), 12345)]
    whole = BlockWriter().block(5, [one[1:] for one in records], [])
    _, items = BlockReader().read(whole)
    assert list(items) == records
    at = 12 + 3 * 18
    tail = msgspec.msgpack.decode(whole[at:])

    def found(change: Callable[[list[Any]], None]) -> str:
        changed = msgspec.msgpack.decode(whole[at:])
        change(changed)
        _, read = BlockReader().read(whole[:at] + msgspec.msgpack.encode(changed))
        with pytest.raises(ValueError, match=r"record \d|a block has other numbers of values") as error:
            list(read)
        return str(error.value)

    for place in (0, 1):
        for column in range(3):

            def flip(changed: list[Any], place: int = place, column: int = column) -> None:
                value = bytearray(changed[2][place][1][column])
                value[1] ^= 1
                changed[2][place][1][column] = bytes(value)

            assert found(flip).startswith(f"record {5 + place} is not the one that was written")
    assert found(lambda changed: changed[2][2].__setitem__(1, 12346)).startswith("record 7 is not the one")

    def swap(changed: list[Any]) -> None:
        (_, one), (_, other) = changed[2][:2]
        changed[2][:2] = [(0, other), (1, one)]
        changed[4][:2] = changed[4][1::-1]

    assert found(swap).startswith("record 5 is not the one that was written")
    assert "other numbers of values" in found(lambda changed: changed[4].pop())
    # Files of an earlier luce have no checksums of values.
    _, read = BlockReader().read(whole[:at] + msgspec.msgpack.encode(tail[:4]))
    assert list(read) == records


# -- what is whole by its checksums, and not to be believed ----------------------------------------------------


def raw(path: Path, *pieces: tuple[FrameKind, bytes]) -> Path:
    path.write_bytes(MAGIC + b"".join(frame(kind, data) for kind, data in pieces))
    return path


def nested(levels: int) -> bytes:
    """In MessagePack."""
    return b"\x91" * levels + b"\x90"


def block(details: bytes = b"\x90", values: bytes = b"\x90") -> bytes:
    """With one record of the loop."""
    whole = BlockWriter().block(0, [EventRecord(0, 0.5, "loop", 0, "turn.done", 0, ("open",))[1:7]], [])
    names = msgspec.msgpack.encode([0]), msgspec.msgpack.encode([("loop", "turn.done", 0, ("open",))])
    head = whole[: -len(b"".join((b"\x94", *names, b"\x90\x90")))]
    assert head + b"\x94" + names[0] + names[1] + b"\x90\x90" == whole
    return head + b"\x94" + names[0] + names[1] + values + details


def detail(**fields: Any) -> bytes:
    return msgspec.msgpack.encode([(0, fields.pop("t", 0.0), fields)])


HEADER, SNAPSHOT = msgspec.msgpack.encode(header()), msgspec.msgpack.encode(EMPTY)
ARRIVAL = msgspec.to_builtins(Arrival("r", 0, 0.0, 1, b"", {}), builtin_types=(bytes,))


def with_header(**changes: Any) -> tuple[FrameKind, bytes]:
    return FrameKind.HEADER, msgspec.msgpack.encode(msgspec.to_builtins(header()) | changes)


def with_block(**pieces: bytes) -> tuple[tuple[FrameKind, bytes], ...]:
    return (
        (FrameKind.HEADER, HEADER),
        (FrameKind.SNAPSHOT, SNAPSHOT),
        (FrameKind.BLOCK, block(**pieces)),
    )


def tree(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize("levels", [5000, 100_000])
def test_what_nests_too_deep_to_be_read(levels: int, tmp_path: Path) -> None:
    deep = nested(levels)
    for pieces in (
        [(FrameKind.HEADER, b"\x81\xa7options" + deep)],
        [(FrameKind.HEADER, HEADER), (FrameKind.SNAPSHOT, b"\x81\xa1x" + deep)],
        with_block(details=b"\x91\x93\x00" + msgspec.msgpack.encode(0.0) + deep),
        with_block(values=b"\x91\x92\x00" + deep),
    ):
        with pytest.raises(TraceFileError, match=r"bad\.ltrace: byte \d+: .*nested too deep"):
            list(TraceFile(raw(tmp_path / "bad.ltrace", *pieces)))


def test_what_nests_too_deep_to_be_shown(tmp_path: Path) -> None:
    for pieces in (
        [with_header(options={"a": tree(300)})],
        [with_header(capabilities={"a": tree(300)})],
        with_block(details=detail(**ARRIVAL | {"sampling": {"seed": tree(300)}})),
        with_block(details=detail(**ARRIVAL | {"form": {"a": tree(300)}})),
    ):
        with pytest.raises(TraceFileError, match=r"byte \d+: .*a value nests deeper than 200 levels"):
            list(TraceFile(raw(tmp_path / "bad.ltrace", *pieces)))
    fine = detail(**ARRIVAL | {"form": {"a": tree(150)}})
    assert len(list(TraceFile(raw(tmp_path / "fine.ltrace", *with_block(details=fine))))) == 3


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan, 1e308])
def test_times_that_are_none(bad: float, tmp_path: Path) -> None:
    written(tmp_path, [record(0), record(1, t=bad), record(2)])
    with pytest.raises(TraceFileError, match="record 1 has no time: "):
        list(read_trace(trace_paths([tmp_path])))
    for pieces in (
        [with_header(clock=bad)],
        with_block(details=detail(type="result", number=1, seconds=bad)),
        with_block(details=detail(type="result", number=1, seconds=0.0, t=bad)),
        with_block(details=detail(**ARRIVAL | {"arrived": bad})),
    ):
        with pytest.raises(TraceFileError, match=r"byte \d+: .*Expected `float` [<>]= "):
            list(TraceFile(raw(tmp_path / "bad.ltrace", *pieces)))


@pytest.mark.parametrize("bad", ["abc", 1e400, 10**9, -1, None, [8]])
@pytest.mark.parametrize("name", ["num_slots", "num_blocks", "max_context", "block_size", "max_depth"])
def test_an_engine_that_nobody_has(name: str, bad: object, tmp_path: Path) -> None:
    path = raw(tmp_path / "bad.ltrace", with_header(capabilities={name: bad}), (FrameKind.SNAPSHOT, SNAPSHOT))
    with pytest.raises(
        TraceFileError, match=f"byte 14: its engine has .* as {name}, which is no number from 0 to "
    ):
        list(TraceFile(path))


def test_values_and_plans_that_say_nothing(tmp_path: Path) -> None:
    values = msgspec.msgpack.encode([(0, "x")])
    with pytest.raises(TraceFileError, match="record 0 has a value that is no number"):
        list(TraceFile(raw(tmp_path / "bad.ltrace", *with_block(values=values))))
    run = [2, "decode", 1, "last sampled", True, None]
    for slots, starts, runs, said in (
        ([0, 1, 2], [0, 0, 0], [run], "other numbers of segments"),
        ([0, 1], [0], [run], "other numbers of segments"),
        ([0, 1], [0, 0], [[10**15, *run[1:]]], "other numbers of segments"),
        ([0, 1], [0, 0], [run, [-1, *run[1:]], [1, *run[1:]]], "negative number of segments"),
    ):
        plan = detail(type="plan", ahead=False, slots=slots, starts=starts, runs=runs)
        with pytest.raises(TraceFileError, match=said):
            list(TraceFile(raw(tmp_path / "bad.ltrace", *with_block(details=plan))))


def test_paths(tmp_path: Path) -> None:
    with pytest.raises(TraceFileError, match="no such file"):
        trace_paths([tmp_path / "nothing"])
    with pytest.raises(TraceFileError, match="no trace is in this directory"):
        trace_paths([tmp_path])
    one = written(tmp_path, RECORDS)
    assert trace_paths([tmp_path, one]) == [one, one]
    with pytest.raises(TraceFileError, match="Is a directory"):
        list(TraceFile(tmp_path))


# -- the recorder ---------------------------------------------------------------------------------------


def noisy(stream: EventStream, count: int) -> None:
    for number in range(count):
        stream.observe(("request", f"request-{number}-{stream.next_number}", "token", 0, FLOWING))


def test_rotation_and_the_bound_on_all_files(tmp_path: Path) -> None:
    limits = Limits(40_000, 8_000)
    stream = EventStream(lambda: 1.0)
    (tmp_path / "not-ours.txt").write_bytes(bytes(100_000))
    recorder = Recorder(tmp_path, limits)
    recorder.attach(stream, header(charts={}, hashes={}), lambda: EMPTY)
    for _ in range(120):
        noisy(stream, 100)
        recorder.flush()
        assert sum(path.stat().st_size for path in trace_files(tmp_path)) <= limits.total + 2_000
    assert recorder.files is not None and recorder.files.total_bytes > 2 * limits.total
    recorder.close()
    paths = trace_paths([tmp_path])
    assert 2 < len(paths) < 8
    found = [item.seq for item in read_trace(paths) if isinstance(item, EventRecord)]
    assert found == list(range(found[0], stream.next_number)), "the newest ones, without a gap"
    assert (tmp_path / "not-ours.txt").exists()
    # A later run makes room among the files of an earlier one.
    again = Recorder(tmp_path, limits)
    again.attach(stream, header(charts={}, hashes={}, run="run2"), lambda: EMPTY)
    again.close()
    assert sum(path.stat().st_size for path in trace_files(tmp_path)) <= limits.total


def test_servers_in_one_directory_leave_each_others_running_files(tmp_path: Path) -> None:
    limits = Limits(40_000, 8_000)
    idle, busy = EventStream(lambda: 1.0), EventStream(lambda: 1.0)
    quiet = Recorder(tmp_path, limits)
    quiet.attach(idle, header(charts={}, hashes={}, run="idle"), lambda: EMPTY)
    noisy(idle, 5)
    quiet.flush()
    (running,) = trace_files(tmp_path)
    os.utime(running, (1, 1))  # the oldest one by far
    other = Recorder(tmp_path, limits)
    other.attach(busy, header(charts={}, hashes={}, run="busy"), lambda: EMPTY)

    def make_noise() -> None:
        for _ in range(60):
            noisy(busy, 100)
            other.flush()
        assert other.files is not None and other.files.total_bytes > limits.total
        other.files.total_bytes = 0
        assert sum(path.stat().st_size for path in trace_files(tmp_path)) <= limits.total + 4_000

    make_noise()
    assert running.exists(), "it is being written"
    noisy(idle, 5)
    quiet.close()
    assert [one.seq for one in records_of(running)] == list(range(10))
    os.utime(running, (1, 1))
    make_noise()
    assert not running.exists(), "nobody writes it any more"
    other.close()


def test_a_file_that_somebody_removes_is_told_and_the_next_one_begun(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stream = EventStream(lambda: 1.0)
    recorder = Recorder(tmp_path, Limits(1 << 20))
    recorder.attach(stream, header(charts={}, hashes={}), lambda: EMPTY)
    for path in trace_files(tmp_path):
        path.unlink()
    noisy(stream, 5)
    recorder.flush()
    assert "is gone" in caplog.text
    noisy(stream, 5)
    recorder.close()
    (path,) = trace_files(tmp_path)
    assert [one.seq for one in records_of(path)] == list(range(5, 10))
    assert caplog.text.count("is gone") == 1


def test_what_is_no_file_in_a_directory_is_passed_over(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / f"pipe{SUFFIX}")
    (tmp_path / f"nowhere{SUFFIX}").symlink_to(tmp_path / "nothing")
    (tmp_path / f"loop{SUFFIX}").symlink_to(tmp_path / f"loop{SUFFIX}")
    (tmp_path / f"folder{SUFFIX}").mkdir()
    with pytest.raises(TraceFileError, match="no trace is in this directory"):
        trace_paths([tmp_path])
    recorder = Recorder(tmp_path, Limits(1))
    recorder.attach(EventStream(lambda: 1.0), header(charts={}, hashes={}), lambda: EMPTY)
    recorder.close()
    assert [path.name for path in trace_paths([tmp_path])] == [f"run-000000{SUFFIX}"]
    assert len(list(tmp_path.iterdir())) == 5


def test_more_than_the_ring_holds_is_a_gap(tmp_path: Path) -> None:
    stream = EventStream(lambda: 1.0, keep=50)
    recorder = Recorder(tmp_path, Limits(1 << 20))
    recorder.attach(stream, header(charts={}, hashes={}), lambda: EMPTY)
    noisy(stream, 40)
    recorder.flush()
    noisy(stream, 70)
    recorder.flush()
    noisy(stream, 5)
    recorder.close()
    items = list(read_trace(trace_paths([tmp_path])))
    assert [item.seq for item in items if isinstance(item, EventRecord)] == [*range(40), *range(60, 115)]
    assert [item for item in items if isinstance(item, tuple) and len(item) == 3] == [(60, 1.0, Gap(20))]
    assert [item.header.first for item in items if isinstance(item, FileStart)] == [0, 110]


def test_a_full_disk_ends_the_trace_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stream = EventStream(lambda: 1.0)
    recorder = Recorder(tmp_path, Limits(1 << 20), interval=0.01)

    async def main() -> None:
        recorder.attach(stream, header(charts={}, hashes={}), lambda: EMPTY)
        noisy(stream, 5)
        write = TraceFiles._write
        broken = OSError(errno.ENOSPC, "No space left on device")

        def full(self: TraceFiles, data: bytes) -> None:
            write(self, data[:7])
            raise broken

        monkeypatch.setattr(TraceFiles, "_write", full)
        with caplog.at_level(logging.WARNING):
            await recorder.run()  # ends by itself
        noisy(stream, 5)
        stream.detail(Gap, 3)
        assert not stream.detailed, "nobody wants details any more"
        recorder.close()

    trio.run(main)
    assert recorder.files is None
    assert caplog.text.count("the trace ends here") == 1 and "No space left on device" in caplog.text
    (path,) = trace_paths([tmp_path])
    warnings: list[str] = []
    list(read_trace([path], warnings))
    assert "breaks off" in warnings[0]


def test_what_came_is_on_disk_without_an_end(tmp_path: Path) -> None:
    """As after a crash: nothing is closed, and a reader beside the writer sees the same."""
    stream = EventStream(lambda: 1.0)
    recorder = Recorder(tmp_path, Limits(1 << 20), interval=0.25)

    async def main() -> None:
        recorder.attach(stream, header(charts={}, hashes={}), lambda: EMPTY)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(recorder.run)
            for _ in range(3):
                noisy(stream, 10)
                await trio.sleep(0.5)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(rate=50))
    assert len([item for item in read_trace(trace_paths([tmp_path])) if isinstance(item, EventRecord)]) == 30


def test_a_directory_that_cannot_be_written_is_told_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below", Path("nul\0")):
        with pytest.raises(ConfigError, match="--trace: "):
            Recorder(path, Limits(1))


def test_limits() -> None:
    assert attrs.evolve(Limits(100), total=40).file == 10
    assert Limits(1 << 40).file == 64 << 20
    assert VERSION == 1
