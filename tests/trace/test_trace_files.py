"""Trace files: what is written is read; a file that was cut, changed or is foreign is told, or read up to the break."""

from __future__ import annotations

import struct
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from luce.errors import TraceFileError
from luce.trace.columns import MOST_RECORDS, BlockReader, BlockWriter
from luce.trace.events import ANY, EventRecord, EventStream, News, Range
from luce.trace.files import SUFFIX, Limits, TraceFiles
from luce.trace.frames import MAGIC, Frame, FrameKind, frame, frames
from luce.trace.objects import MOST_OBJECTS, check_objects
from luce.trace.reader import FileStart, TraceFile, read_header, read_trace, trace_paths
from luce.trace.schema import (
    Arrival,
    LiveMachine,
    Snapshot,
    Unknown,
)
from tests.trace.recording import header, items_of, records_of, written
from tests.trace.sample_records import DETAILS, EMPTY, FLOWING, RECORDS, frame_ends


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


def test_paths(tmp_path: Path) -> None:
    with pytest.raises(TraceFileError, match="no such file"):
        trace_paths([tmp_path / "nothing"])
    with pytest.raises(TraceFileError, match="no trace is in this directory"):
        trace_paths([tmp_path])
    one = written(tmp_path, RECORDS)
    assert trace_paths([tmp_path, one]) == [one, one]
    with pytest.raises(TraceFileError, match="Is a directory"):
        list(TraceFile(tmp_path))
