"""What actors learn before their records tell it: read from the whole trace beforehand.

When an answer ends by itself, what masks its tokens have, and how much memory was free are no messages: they are asked
for. Memory is a few numbers for each request, and a byte for each token that had a form.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

import attrs

from luce.errors import TraceFileError, printable
from luce.replay.redrive.sequences import Sequences
from luce.trace.events import EventRecord
from luce.trace.reader import FileStart, Item
from luce.trace.schema import Alike, Arrival, Gap

__all__ = ["AnswerScript", "Script", "script_of"]

_FORMS: Final = {"decoding_free": "f", "decoding_masked": "m", "decoding_masking": "w"}
"""States of `request.scxml` that say what is known of the next token: anything, its mask, that a worker computes it."""
_OVER: Final = frozenset({"finished", "failed", "cancelled"})
"""Final states of `request.scxml`."""


@attrs.define
class AnswerScript:
    """Of one request."""

    constrained: bool
    taken: int = 0
    """Tokens."""
    finished: bool = False
    """Its last token ended it."""
    forms: bytearray = attrs.field(factory=bytearray)
    """What was known of the next token, at first and, where it was held to a form, after each token and each mask."""


@attrs.define
class Script:
    answers: dict[int, AnswerScript] = attrs.field(factory=dict)
    """By arrival number."""
    orders: dict[str, int] = attrs.field(factory=dict)
    """Arrival numbers of those who are not over at the end, by id."""
    memory: dict[str, deque[int | None]] = attrs.field(factory=dict)
    """What was read of free memory, by what for."""
    sequences: Sequences = attrs.field(factory=Sequences)
    """What stands for tokens that the trace does not have."""
    end: int = -1
    """Number of the last record; a file that is being written may have more when it is read again."""
    whole: bool = False
    """The server came to its end."""
    failed: bool = False
    """It ended by a fault."""


def script_of(items: Iterable[Item]) -> Script:
    """Read a trace from its server's start.

    Raises:
        TraceFileError: it does not begin there, or records are missing; names the file.
    """
    script, path, expected = Script(), "the trace", None
    for item in items:
        if isinstance(item, EventRecord):
            script.end = item.seq
            expected = item.seq + 1
            if item.machine == "request":
                _see(script, item)
            elif item.machine == "server":
                script.whole = "stopped" in item.configuration
                script.failed = "failed" in item.configuration
            elif item.machine == "memory":
                script.memory.setdefault(str(item.id), deque()).append(item.value)
        elif isinstance(item, FileStart):
            path = str(item.path)
            if expected is None and item.snapshot.machines:
                raise TraceFileError(
                    path,
                    "it does not begin with its server: actors can be driven again from their start only",
                )
            if expected is not None and item.header.first != expected:
                raise TraceFileError(
                    path, f"records {expected} to {item.header.first - 1} are missing before it"
                )
        elif isinstance(item[2], Arrival):
            if item[2].id in script.orders:
                raise TraceFileError(path, f"two requests have the id {printable(item[2].id)} at once")
            script.orders[item[2].id] = item[2].order
            first = bytearray(b"m" if item[2].masked else b"f")
            script.answers[item[2].order] = AnswerScript(item[2].constrained, forms=first)
        elif isinstance(item[2], Alike):
            try:
                script.sequences.learn(item[2])
            except ValueError as error:
                raise TraceFileError(path, str(error)) from None
        elif isinstance(item[2], Gap):
            raise TraceFileError(path, f"{item[2].lost} records before {item[0]} are missing")
    return script


def _see(script: Script, record: EventRecord) -> None:
    order, states = script.orders.get(str(record.id)), record.configuration
    if order is None:
        return
    if not _OVER.isdisjoint(states):
        del script.orders[str(record.id)]
    answer = script.answers[order]
    if record.event == "token" and ("ending" not in states or "ending_finished" in states):
        if not answer.finished:
            answer.taken += 1
        answer.finished = "ending_finished" in states
    if not answer.constrained:
        return
    form = next((_FORMS[state] for state in states if state in _FORMS), None)
    if form is not None and record.event in ("token", "mask.ready"):
        answer.forms += form.encode()
