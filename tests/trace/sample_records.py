"""Records and details that tests of trace files write."""

from __future__ import annotations

import struct
from typing import Any

from luce.trace.events import EventRecord
from luce.trace.frames import MAGIC
from luce.trace.schema import (
    Arrival,
    Landed,
    Picture,
    Planned,
    Run,
    Snapshot,
)

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


LONG = [
    record(seq, name=f"r{seq % 3}", event="token" if seq % 5 else "chunk.done") for seq in range(100, 140)
]


def frame_ends(data: bytes) -> list[int]:
    at, ends = len(MAGIC), []
    while at < len(data):
        at += 16 + struct.unpack_from("<I", data, at)[0]
        ends.append(at)
    return ends
