"""Blocks of records: what is looked up by address is what it is by value."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from luce.trace import columns
from luce.trace.columns import BlockReader, BlockWriter
from luce.trace.events import EventRecord

SHARED = ("ready",)
"""One list of states of two machines."""


def entries(rounds: int, *, anew: bool) -> list[tuple[Any, ...]]:
    """Args: anew: each has a list of states of its own, as no machine does."""
    made = []
    for turn in range(rounds):
        for machine, event in (("server", "tick"), ("entry", "tick"), ("entry", "filled")):
            states = tuple("".join(one) for one in SHARED) if anew else SHARED
            made.append((0.5 * turn, machine, turn % 3, event, turn % 2, states))
        made.append((0.5 * turn, "clock", "now", "read", 0, (), turn))
    return made


def read(blocks: list[bytes]) -> list[EventRecord]:
    reader = BlockReader()
    return [record for block in blocks for record in reader.read(block)[1]]  # type: ignore[misc]


@pytest.mark.parametrize("most", [0, 3, 1 << 14])
@pytest.mark.parametrize("anew", [False, True])
def test_records_come_back_and_names_are_written_once(
    anew: bool, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(columns, "_MOST_QUICK", most)
    writer, told = BlockWriter(), entries(20, anew=anew)
    cuts = [told[:7], told[7:8], told[8:50], told[50:]]
    starts = [0, 7, 8, 50]
    blocks = [writer.block(first, cut, ()) for first, cut in zip(starts, cuts, strict=True)]
    found = read(blocks)
    assert found == [EventRecord(seq, *entry) for seq, entry in enumerate(told)]
    names: list[Any] = []
    for block, cut in zip(blocks, cuts, strict=True):
        tail = msgspec.msgpack.decode(block[12 + 18 * len(cut) :])
        names += [(machine, event, bits) for machine, event, bits, _ in tail[1]]
    assert len(names) == len(set(names)) == 7
    assert len(writer._held) == len(writer._quick) <= most + len(told), "no more is kept alive"
    other = BlockWriter()
    same = entries(20, anew=not anew)
    assert [
        other.block(at, same[at : at + len(cut)], ()) for at, cut in zip(starts, cuts, strict=True)
    ] == blocks
