"""Stored states of the fake engine: what they hold, how mistakes show, how they fail and how long they take."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import trio
import trio.testing

from luce.engines.fake.checks import PlanError
from luce.engines.fake.engine import FakeEngine, Mode, fake_capabilities
from luce.engines.fake.lanes import JUNK
from luce.engines.fake.reference import reference_tokens
from luce.engines.fake.times import Times
from luce.engines.seam import StepPlan, StoresStates, WorkKind
from luce.errors import DeviceError
from tests.engines.fake.harness import Driver, decode, prefill, text_spec
from tests.engines.fake.stored import PENALTIES, TEXT, adopt, do, driver, item, restore, started


def test_is_an_engine_that_stores_states() -> None:
    running, taken, saved = started()
    seam: StoresStates = running.engine
    assert seam.capabilities.captured_bytes(14) == 8 + 2 * 8
    assert seam.capabilities.saved_bytes(14) == 8 + 14 * 8
    assert running.engine.stored_bytes == 24 + 120
    assert running.engine.stored_handles == {taken.handle, saved.handle}
    seam.discard(taken.handle)
    assert running.engine.stored_bytes == 120


def tail(running: Driver, slot: int, position: int) -> list[int | None]:
    """The answer of a slot with TEXT, from ``position`` of its prompt on."""
    out = running.tokens(prefill(slot, position, 20 - position, sample=True))
    for row in range(20, 31):
        out += running.tokens(decode(slot, row))
    return out


@pytest.mark.parametrize("part", ["state", "sums"])
@pytest.mark.parametrize("kind", [WorkKind.CAPTURE, WorkKind.SAVE])
def test_a_corrupted_state_is_found_and_changes_the_answer(kind: WorkKind, part: str) -> None:
    for damage in (0, 1):
        running, taken, saved = started()
        work = taken if kind is WorkKind.CAPTURE else saved
        states = running.engine._states.states
        stored = states[work.handle]
        sums = (*stored.sums[:-1], stored.sums[-1] ^ damage)
        states[work.handle] = (
            attrs.evolve(stored, state=stored.state ^ damage)
            if part == "state"
            else attrs.evolve(stored, sums=sums)
        )
        found = running.engine.audit_stored(work.handle, TEXT)
        assert found == ([f"{'states' if part == 'state' else 'sums'}, row 13"] if damage else [])
        if kind is WorkKind.CAPTURE:
            adopt(running, 1, TEXT, taken, running.tables[0])
        else:
            restore(running, 1, TEXT, saved)
        assert (tail(running, 1, 14) == reference_tokens(TEXT, 12)) == (not damage)


def test_penalties_come_along() -> None:
    """A recompute that forgets which tokens were generated gets another answer; one that knows does not."""
    right = reference_tokens(TEXT, 12)
    for known in (True, False):
        content = TEXT.with_generated(right[:6])
        if not known:
            content.num_generated = 0
        running = driver()
        running.open(0, content)
        out = running.generate(0, content, 6)
        assert (out == right[6:]) == known


def test_scripts_count_generated_tokens_from_the_first() -> None:
    script = [65, 66, 67, 68, 69]
    engine = FakeEngine(fake_capabilities(), mode=Mode.INLINE, script=lambda _, index: script[index])
    running = Driver(engine)
    content = TEXT.with_generated(script[:2])
    running.open(0, content)
    assert running.generate(0, content, 3) == script[2:]


def test_freed_blocks_are_junk() -> None:
    """A table that still names a freed block cannot get past the checks; its content would be wrong, too."""
    running, *_ = started(20)
    blocks = running.tables[0]
    running.close(0)
    running.open(1, TEXT)
    running.step(prefill(1, 0, 1))  # tells of the freed blocks
    assert running.engine.audit_blocks(TEXT, blocks, 20) != []
    assert [running.engine._model.whole[block] for block in blocks[:4]] == [JUNK] * 4
    plan = StepPlan(running.number + 1, (prefill(1, 1, 7),), ((running.tables[1][0], blocks[1]),))
    with pytest.raises(PlanError, match=f"block {blocks[1]}, which nobody holds"):
        running.engine.launch(plan)


@pytest.mark.parametrize("mode", [Mode.INLINE, Mode.THREAD])
@pytest.mark.parametrize("kind", [kind for kind in WorkKind if kind is not WorkKind.IMPORT])
def test_injected_failures_fail_the_item_alone(kind: WorkKind, mode: Mode) -> None:
    running, taken, saved = started(mode=mode)
    engine = running.engine
    engine.fail_work(kind, "no luck")
    if kind is WorkKind.ADOPT:
        outcomes = adopt(running, 1, TEXT, taken, running.tables[0])
    elif kind is WorkKind.RESTORE:
        outcomes = restore(running, 1, TEXT, saved)
    else:
        outcomes = do(running, item(kind, 0, 14, 900))
        assert 900 not in engine.stored_handles
        engine.discard(900)
        running.open(1, TEXT)
    assert outcomes[0].error == "no luck" and outcomes[0].nbytes == 0
    if kind in (WorkKind.ADOPT, WorkKind.RESTORE):  # the slot is as freshly opened, the state still there
        assert engine.stored_handles == {taken.handle, saved.handle}
        running.tables[1] = ()
    assert tail(running, 1, 0) == reference_tokens(TEXT, 12)
    assert tail(running, 0, 14) == reference_tokens(TEXT, 12)
    engine.shutdown()


def test_a_row_after_work_that_failed_fails_and_the_slot_can_begin_again() -> None:
    """At depth 2, or in the same plan, nobody knew."""
    running, taken, _ = started()
    running.engine.fail_work(WorkKind.ADOPT)
    running.open(1, TEXT)
    table = (*running.tables[0][:3], *running.take(2))
    work = item(WorkKind.ADOPT, 1, 14, taken.handle, *table[:4])
    result = running.step(prefill(1, 14, 6, sample=True), work=[work], tables=[table])
    assert result.work[0].error is not None
    assert result.outcomes[0].error == "row 14 does not follow on the 0 rows computed"
    assert tail(running, 1, 0) == reference_tokens(TEXT, 12)


def test_work_that_failed_can_be_tried_again_or_its_blocks_freed() -> None:
    running, taken, saved = started()
    running.engine.fail_work(WorkKind.RESTORE)
    assert restore(running, 1, TEXT, saved)[0].error is not None
    again = item(WorkKind.RESTORE, 1, 14, saved.handle, *running.tables[1])
    assert do(running, again)[0].error is None
    running.engine.fail_work(WorkKind.ADOPT)
    assert adopt(running, 2, TEXT, taken, running.tables[0])[0].error is not None
    running.release(running.tables[2][3:])
    running.tables[2] = ()
    for slot, row in ((0, 14), (1, 14), (2, 0)):
        assert tail(running, slot, row) == reference_tokens(TEXT, 12)


@pytest.mark.parametrize("known", range(6))
def test_a_slot_may_come_back_with_some_of_its_tokens_in_the_prompt(known: int) -> None:
    right = reference_tokens(TEXT, 12)
    running, *_ = started(20)
    for row in range(20, 25):
        running.step(decode(0, row))
    saved = item(WorkKind.SAVE, 0, 25, 900)
    do(running, saved)
    running.close(0)
    assert restore(running, 1, TEXT.with_generated(right[:known]), saved)[0].error is None
    assert running.engine.audit(1) == []
    out = [running.tokens(decode(1, 25 + index))[0] for index in range(6)]
    assert out == right[6:]


def test_another_sequence_is_refused_by_the_device() -> None:
    """As by the real one: its ids are known only when it runs."""
    running, taken, saved = started()
    other = text_spec([5, 6, 7, 8, 1] * 4, PENALTIES)
    assert "another sequence" in (adopt(running, 1, other, taken, running.tables[0])[0].error or "")
    assert "another sequence" in (restore(running, 2, other, saved)[0].error or "")
    again = TEXT.with_generated([1, 2])
    again.num_generated = 0
    running.open(3, again)
    blocks = running.take(4)
    (outcome,) = do(running, item(WorkKind.RESTORE, 3, 14, saved.handle, *blocks))
    assert "another sequence" in (outcome.error or ""), "its answer does not begin where the saved one's did"


def test_a_failed_row_or_step_fails_work_too() -> None:
    running, *_ = started()
    running.engine.fail_row(0)
    running.step(prefill(0, 14, 1))
    assert do(running, item(WorkKind.SAVE, 0, 15, 900))[0].error is not None
    running, *_ = started()
    running.engine.fail_step(running.number + 1, "the device fell over")
    with pytest.raises(DeviceError, match="fell over"):
        do(running, item(WorkKind.CAPTURE, 0, 14, 900))
    assert running.step(prefill(0, 14, 1)).outcomes[0].error == "the device fell over"
    running.engine.discard(900)


def test_modelled_times_of_work() -> None:
    times = Times(step=100.0, row=10.0, work=1.0, saved_row=0.5, restored_row=0.25)

    async def main() -> None:
        running = driver(Mode.MANUAL, times)
        ends = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(running.engine.drive)

            async def step(*segments: Any, work: Any = ()) -> None:
                ticket = running.launch(*segments, work=work)
                await trio.lowlevel.wait_readable(ticket.fd)
                result = running.engine.collect(ticket)
                ends.append((trio.current_time(), result.seconds))

            running.open(0, TEXT)
            await step(prefill(0, 0, 8))
            await step(work=[item(WorkKind.SAVE, 0, 8, 1), item(WorkKind.CAPTURE, 0, 8, 2)])
            running.open(1, TEXT)
            running.open(2, TEXT)
            restored = item(WorkKind.RESTORE, 1, 8, 1, *running.take(2))
            adopted = item(WorkKind.ADOPT, 2, 8, 2, *running.tables[0])
            await step(prefill(0, 8, 2), work=[restored, adopted])
            nursery.cancel_scope.cancel()
        assert ends == [(180, 180), (286, 106), (410, 124)]

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
