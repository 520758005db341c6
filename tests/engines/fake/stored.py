"""Saving, restoring, capturing and adopting on a fake engine by hand."""

from __future__ import annotations

import itertools
from typing import Any

from luce.engines.fake.engine import FakeEngine, Mode, fake_capabilities
from luce.engines.fake.times import Times
from luce.engines.seam import SlotSpec, SlotWork, WorkKind, WorkOutcome
from luce.sampling.parameters import SamplingParams
from tests.engines.fake.harness import Driver, image_spec, prefill, text_spec

PENALTIES = SamplingParams(seed=3, presence_penalty=1.0, repetition_penalty=1.3)
TEXT = text_spec([5, 6, 7, 8, 9] * 4, PENALTIES)
IMAGES = image_spec([1, 2, 3], [b"cat", b"dog"], [4, 5])
SIZE = 4
HANDLES = itertools.count(1)


def driver(mode: Mode = Mode.INLINE, times: Times | None = None, **changes: Any) -> Driver:
    small: dict[str, Any] = {"block_size": SIZE, "num_slots": 4, "num_blocks": 64}
    return Driver(FakeEngine(fake_capabilities(**small | changes), mode=mode, times=times))


def item(kind: WorkKind, slot: int, position: int, handle: int, *blocks: int) -> SlotWork:
    return SlotWork(kind, slot, position, handle, blocks)


def do(running: Driver, *work: SlotWork) -> tuple[WorkOutcome, ...]:
    return running.step(work=work).work


def restore(running: Driver, slot: int, spec: SlotSpec, saved: SlotWork) -> tuple[WorkOutcome, ...]:
    """Open a slot and fill it."""
    running.open(slot, spec)
    running.tables[slot] = running.take(-(-saved.position // SIZE))
    return do(running, item(WorkKind.RESTORE, slot, saved.position, saved.handle, *running.tables[slot]))


def adopt(
    running: Driver, slot: int, spec: SlotSpec, taken: SlotWork, table: tuple[int, ...]
) -> tuple[WorkOutcome, ...]:
    """Open a slot and start it from a snapshot over its source's blocks."""
    running.open(slot, spec)
    whole, cut = divmod(taken.position, SIZE)
    running.tables[slot] = (*table[:whole], *running.take(1 if cut else 0))
    return do(running, item(WorkKind.ADOPT, slot, taken.position, taken.handle, *running.tables[slot]))


def started(rows: int = 14, **changes: Any) -> tuple[Driver, SlotWork, SlotWork]:
    """Slot 0 has rows of TEXT, a snapshot and a save of them."""
    running = driver(**changes)
    running.open(0, TEXT)
    running.step(prefill(0, 0, rows, sample=rows == 20))
    taken, saved = (item(kind, 0, rows, next(HANDLES)) for kind in (WorkKind.CAPTURE, WorkKind.SAVE))
    assert all(outcome.error is None for outcome in do(running, taken, saved))
    return running, taken, saved
