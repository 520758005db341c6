"""What is whole by its checksums, and not to be believed."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec
import pytest

from luce.errors import TraceFileError
from luce.trace.columns import BlockWriter
from luce.trace.events import EventRecord
from luce.trace.frames import MAGIC, FrameKind, frame
from luce.trace.reader import TraceFile, read_trace, trace_paths
from luce.trace.schema import (
    Arrival,
)
from tests.trace.recording import header, written
from tests.trace.sample_records import EMPTY, record


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
