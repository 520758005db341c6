"""Copies of states are launched behind a step's rows where these leave what is copied as it was, and only there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from luce.engines.qwen35.device import engine as engines
from luce.engines.qwen35.device.behind_rows import behind_rows
from luce.engines.qwen35.slots import Greedy, Slot
from luce.engines.seam import RowSource, Segment, SegmentKind, SlotWork, StepPlan, WorkKind
from tests.engines.harness import Driver, Rows, text_spec
from tests.engines.requests import Request, adopted, capture, do, prompt, save


def plan_of(segments: Sequence[tuple[int, int, int]], work: Sequence[SlotWork]) -> StepPlan:
    """Segments of (slot, start, count)."""
    made = tuple(
        Segment(slot, SegmentKind.PREFILL, start, count, RowSource.PROMPT, False)
        for slot, start, count in segments
    )
    return StepPlan(1, made, tuple(() for _ in made), tuple(work))


def open_slot(index: int, start: int, high: int) -> Slot:
    spec = text_spec(list(range(100)))
    return Slot(index, spec, Greedy(100), np.zeros(400, np.int64), start // 64 * 64, start, high)


def copied(slot: int, position: int, kind: WorkKind = WorkKind.CAPTURE, handle: int = 0) -> SlotWork:
    return SlotWork(kind, slot, position, handle or 100 * slot + position)


@pytest.mark.parametrize(
    ("positions", "segment", "behind"),
    [
        ([29], None, True),
        ([29], (29, 10), True),
        ([29, 37], (43, 1), True),
        ([37, 29], (43, 1), False),  # the second is to be refused
        ([29], (30, 34), True),
        ([29], (30, 64), False),  # more rows past it than rings have room for
        ([63], (63, 64), True),
        ([62], (63, 64), False),
        ([62], (64, 1), False),  # its chunk goes into S
        ([29], (20, 20), False),  # writes what is kept
        ([20], (43, 1), True),  # late: rows past it are committed
        ([0], (43, 1), False),
        ([44], (44, 1), False),  # there is no such row yet
        ([64], (64, 1), False),  # S has to be moved on first
    ],
)
def test_captures_that_may_follow_the_rows(
    positions: list[int], segment: tuple[int, int] | None, behind: bool
) -> None:
    high = 64 if max(positions) > 44 else 43
    slots = {3: open_slot(3, 25, high)}
    segments = [] if segment is None else [(3, *segment)]
    plan = plan_of(segments, [copied(3, position) for position in positions])
    assert behind_rows(plan, slots) == (frozenset(range(len(positions))) if behind else frozenset())


def test_other_work_and_what_depends_on_it_comes_first() -> None:
    slots = {index: open_slot(index, 25, 43) for index in range(4)}
    saved = [copied(1, 29), copied(1, 43, WorkKind.SAVE)]
    assert not behind_rows(plan_of([], saved), slots), "a save has to be done when the step is"
    used = [copied(0, 29, handle=7), copied(2, 29, WorkKind.ADOPT, handle=7), copied(3, 29)]
    assert behind_rows(plan_of([(2, 29, 3)], used), slots) == {2}, "what is adopted in the plan is made first"
    assert behind_rows(plan_of([], used), slots) == {1, 2}


@pytest.mark.parametrize("gap", [0, 6])
@pytest.mark.parametrize("at", [70, 100, 121])
def test_a_snapshot_behind_rows_of_its_own_slot_is_that_before_them(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, at: int, gap: int
) -> None:
    engine: Any = driver.engine
    runner = engine._runner
    order: list[str] = []
    take, rows = runner.copies.take, runner.segments
    monkeypatch.setattr(runner.copies, "take", lambda *a: (order.append("copy"), take(*a))[1])
    monkeypatch.setattr(runner, "segments", lambda *a: (order.append("rows"), rows(*a))[1])
    source, other = Request(driver, prompt(3), 0), Request(driver, prompt(1), 1)
    source.advance(at + gap)
    other.advance(30)
    order.clear()
    items = [capture(source, at), capture(other)]
    parts = [source.next_rows(1), other.next_rows(20)]
    result = driver.run(parts, items)
    assert order == ["rows", "copy", "copy"] and [one.error for one in result.work] == [None, None]
    for sequence, part, outcome, item in zip((source, other), parts, result.outcomes, items, strict=True):
        assert engine.audit_stored(item.handle, sequence.spec) == []
        sequence.took(part, outcome.tokens)
    again = Request(driver, prompt(3), 2)
    do(driver, adopted(again, items[0], source.opened.blocks))
    for sequence in (source, other, again):
        sequence.finish()
        sequence.check()
    assert engine.audit(0) == [] and engine.audit(2) == []


@pytest.mark.parametrize("behind", [False, True])
def test_the_trap_is_set(driver: Driver, monkeypatch: pytest.MonkeyPatch, behind: bool) -> None:
    """A copy behind a row that moves S on is another state."""
    source = Request(driver, prompt(3), 0)
    source.advance(128)
    item, part = capture(source, 127), source.next_rows(1)
    assert part.start == 128
    if behind:
        monkeypatch.setattr(engines, "behind_rows", lambda plan, slots: frozenset({0}))
    result = driver.run([part], [item])
    assert result.work[0].error is None
    assert bool(driver.engine.audit_stored(item.handle, source.spec)) == behind


def test_a_copy_does_not_wait_for_rows_past_it(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that has ended may have a row in flight that is void. A save does wait: it has all rows."""
    source = Request(driver, prompt(0), 0)
    source.advance(80)
    engine: Any = driver.engine
    settled: list[bool] = []
    settle = engine._settle
    monkeypatch.setattr(engine, "_settle", lambda: (settled.append(True), settle())[1])
    for make, waits in ((lambda: capture(source), False), (lambda: save(source), True)):
        engine.call(lambda *_: None)  # all steps so far are noted
        settled.clear()
        with monkeypatch.context() as patched:
            patched.setattr(engine, "_note_finished", lambda: None)  # as if the device were not there yet
            rows = engine.launch(driver.plan([Rows(source.opened, source.row, 1, sample=False)]))
            if waits:
                source.row += 1
            item = make()
            copy = engine.launch(driver.plan(work=[item]))
            engine.collect(rows)
            result = engine.collect(copy)
        assert result.work[0].error is None and bool(settled) == waits
        if not waits:
            assert engine.audit_stored(item.handle, source.spec) == []
    source.finish()
    source.check()
