"""The contract around stored states: what is refused, who else notices, whose blocks are whose, what is committed."""

from __future__ import annotations

import random
from typing import Any

import attrs
import pytest

from luce.engines.qwen35.engine import Qwen35Engine
from luce.engines.seam import (
    RowSource,
    Segment,
    SegmentKind,
    SlotWork,
    StepPlan,
    StoresStates,
    WorkKind,
    WorkOutcome,
)
from luce.errors import DeviceError
from tests.engines.harness import Driver, Rows, new_engine, random_ids, same_bits, text_spec
from tests.engines.models import NAN_TOKEN, tiny_model
from tests.engines.requests import Request, adopted, capture, do, prompt, restored, save


def handles(engine: Qwen35Engine) -> set[int]:
    return engine.call(lambda runner, _: set(runner.stored.states))


def fails(driver: Driver, item: SlotWork, message: str) -> None:
    """The item fails with this message, and its neighbours in the plan do not."""
    neighbour = Request(driver, prompt(6), 3)
    before = handles(driver.engine)
    rows = neighbour.next_rows(10)
    result = driver.run([rows], [item])
    neighbour.took(rows, result.outcomes[0].tokens)
    (outcome,) = result.work
    assert message in (outcome.error or ""), outcome
    assert outcome.slot == item.slot and outcome.nbytes == 0
    assert handles(driver.engine) == before
    neighbour.finish()
    neighbour.check()
    neighbour.close()


def test_is_an_engine_that_stores_states(driver: Driver) -> None:
    seam: StoresStates = driver.engine
    limits = seam.capabilities
    assert limits.parking and limits.snapshots
    pool = driver.engine.pool
    state = sum(layer.s[0].nbytes + 3 * layer.conv[0, 0].nbytes for layer in pool.deltanet)
    state += sum((layer.k[0].nbytes + layer.u[0].nbytes + layer.g[0].nbytes) // 2 for layer in pool.deltanet)
    assert limits.bytes_per_snapshot == state
    assert limits.captured_bytes(2 * limits.block_size) == state
    assert limits.saved_bytes(100) == state + 100 * limits.bytes_per_token


@pytest.mark.parametrize("kind", [WorkKind.SAVE, WorkKind.CAPTURE])
def test_copies_that_cannot_be_made(driver: Driver, kind: WorkKind) -> None:
    request = Request(driver, prompt(0), 0)
    fails(driver, SlotWork(kind, 0, 1, 900), "cannot be stored: the slot is committed at 0 and has 0 rows")
    request.advance(40)
    request.advance(70)
    for position in (0, 39, 63, 111):
        fails(driver, SlotWork(kind, 0, position, 900), f"position {position} cannot be stored")
    fails(driver, SlotWork(kind, 2, 1, 900), "slot 2 is not open")
    taken = attrs.evolve(capture(request, 105), kind=kind)
    do(driver, taken)
    fails(driver, attrs.evolve(taken, position=106), f"handle {taken.handle} is in use")
    for position in [104, 64] if kind is WorkKind.SAVE else [63]:
        fails(driver, attrs.evolve(taken, position=position, handle=900), "committed at 105 and has 110 rows")
    assert driver.engine.audit(0) == []
    request.finish()
    request.check()


def test_a_sequence_that_failed_is_not_stored(driver: Driver) -> None:
    request = Request(driver, text_spec([1, NAN_TOKEN, 3, 4]), 0)
    (outcome,) = driver.step([Rows(request.opened, 0, 4, sample=False)])
    assert outcome.error is not None
    for kind in (WorkKind.SAVE, WorkKind.CAPTURE):
        fails(driver, SlotWork(kind, 0, 4, 900), "failed before: rows up to position 4 are not finite")


def test_a_snapshot_that_cannot_be_adopted(driver: Driver) -> None:
    """The slot stays as it was opened: it can still compute everything itself."""
    spec = prompt(0)
    source = Request(driver, spec, 1)
    source.advance(70)
    taken, saved = capture(source), save(source)
    do(driver, taken, saved)
    blocks = tuple(source.opened.blocks)
    ids = spec.token_ids.copy()
    ids[0] += 1
    positions = spec.positions.copy()
    positions[2, 30] += 1
    cases: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
        ("holds nothing", {}, {"handle": 901}),
        ("holds the result of a save", {}, {"handle": saved.handle}),
        ("stored at position 70, not 71", {}, {"position": 71}),
        ("other token ids", {"token_ids": ids}, {}),
        ("other token ids or positions", {"positions": positions}, {}),
        ("do not cover 70 rows", {}, {"blocks": blocks[:-1]}),
        ("do not cover 70 rows", {}, {"blocks": (*blocks[:-1], 10**6)}),
        ("leaves no row", {"token_ids": spec.token_ids[:70], "positions": spec.positions[:, :70]}, {}),
    ]
    for message, content, wrong in cases:
        other = Request(driver, attrs.evolve(spec, **content), 2)
        work = attrs.evolve(adopted(other, taken, blocks), **wrong)
        fails(driver, work, message)
        other.row = 0
        other.close()
    other = Request(driver, spec, 2)
    work = adopted(other, taken, blocks)
    fails(driver, attrs.evolve(work, handle=901), "holds nothing")
    other.row, other.opened.blocks, other.shared = 0, [], ()
    other.finish()
    other.check()
    fails(driver, work, f"has {159} rows already")
    source.finish()
    source.check()


def test_a_saved_slot_that_cannot_be_restored(driver: Driver) -> None:
    spec = prompt(0)
    source = Request(driver, spec, 1)
    source.advance(1000)
    source.advance()
    taken, saved, content = capture(source), save(source), source.content
    do(driver, taken, saved)
    other = Request(driver, content, 2)
    other.close()
    fails(
        driver, restored(other, 2, attrs.evolve(saved, handle=taken.handle), content), "result of a capture"
    )
    other.close()
    as_prompt = attrs.evolve(source.so_far, num_generated=0)
    fails(
        driver,
        restored(other, 2, saved, as_prompt),
        "the answer began at 150 when the slot was saved; now at",
    )
    other.close()
    short = attrs.evolve(content, max_tokens=0)
    fails(driver, restored(other, 2, saved, short), "leaves no row to go on with")
    other.close()
    do(driver, restored(other, 2, saved, content))
    other.tokens = source.tokens[:2]
    other.finish()
    other.check()


@pytest.mark.parametrize("kind", [kind for kind in WorkKind if kind is not WorkKind.IMPORT])
def test_no_memory_fails_the_item_alone(
    driver: Driver, kind: WorkKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And leaves the slot as it was: it goes on, or is as freshly opened."""
    source = Request(driver, prompt(0), 0)
    source.advance(70)
    taken, saved, content = capture(source), save(source), source.content
    do(driver, taken, saved)
    other = Request(driver, prompt(0), 1)
    if kind is WorkKind.ADOPT:
        work = adopted(other, taken, source.opened.blocks)
    elif kind is WorkKind.RESTORE:
        other.close()
        work = restored(other, 1, saved, content)
    else:
        work = attrs.evolve(capture(source), kind=kind)

    def no_memory(*_: object) -> None:
        raise MemoryError("Unable to allocate 3 GiB")

    name = "take" if kind in (WorkKind.SAVE, WorkKind.CAPTURE) else "put"
    with monkeypatch.context() as patched:
        patched.setattr(f"luce.engines.qwen35.snapshots.{name}", no_memory)
        fails(driver, work, f"no host memory left to {kind.value} a slot: Unable to allocate 3 GiB")
    other.row = 0
    for request in (source, other):
        request.finish()
        request.check()


def test_a_segment_after_work_that_failed_fails_too(driver: Driver) -> None:
    """In the plan that was made when nobody knew, and without harm to the slot."""
    other = Request(driver, prompt(0), 2)
    other.opened.blocks = driver.take(6)
    work = SlotWork(WorkKind.ADOPT, 2, 70, 901, tuple(other.opened.blocks))
    result = driver.run([Rows(other.opened, 70, 10, sample=False)], [work])
    assert "holds nothing" in (result.work[0].error or "")
    assert "do not follow on the 0 rows" in (result.outcomes[0].error or "")
    other.finish()
    other.check()


def test_work_runs_in_order_before_the_segments(driver: Driver) -> None:
    """A snapshot is taken, adopted and continued in one plan, while its source goes on."""
    source, other = Request(driver, prompt(0), 0), Request(driver, prompt(0), 2)
    source.advance(100)
    taken = capture(source)
    items = [taken, adopted(other, taken, source.opened.blocks)]
    rows = [source.next_rows(20), other.next_rows(30)]
    result = driver.run(rows, items)
    assert [outcome.error for outcome in result.work] == [None, None]
    for request, part, outcome in zip((source, other), rows, result.outcomes, strict=True):
        request.took(part, outcome.tokens)
        request.finish()
        request.check()


def test_discarding_gives_the_memory_back_and_is_forgiving(driver: Driver) -> None:
    engine = driver.engine
    request = Request(driver, prompt(0), 0)
    request.advance(70)
    taken, saved = capture(request), save(request)
    outcomes = do(driver, taken, saved)

    def stored() -> int:
        return engine.call(lambda runner, _: runner.stored.nbytes)

    assert stored() == sum(outcome.nbytes for outcome in outcomes) > 0
    engine.discard(taken.handle)
    assert stored() == outcomes[1].nbytes
    engine.discard(saved.handle)
    engine.discard(902)
    assert stored() == 0


def test_a_step_that_fails_as_a_whole_fails_slots_with_work_in_it(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = Request(driver, prompt(0), 0)
    request.advance(70)
    with monkeypatch.context() as patched:
        patched.setattr("luce.engines.qwen35.snapshots.take", None)
        with pytest.raises(DeviceError, match="NoneType"):
            driver.run(work=[capture(request)])
    (outcome,) = driver.step([request.next_rows(1)])
    assert "failed before" in (outcome.error or "")


# -- blocks -------------------------------------------------------------------------------------------------------


def plan(
    number: int, blocks: tuple[int, ...], fresh: tuple[int, ...], freed: tuple[int, ...] = ()
) -> StepPlan:
    segment = Segment(0, SegmentKind.PREFILL, 0, 20, RowSource.PROMPT, sample=True)
    return StepPlan(number, (segment,), (blocks,), fresh_blocks=fresh, freed_blocks=freed)


def test_blocks_are_used_as_they_were_given_out() -> None:
    engine = new_engine(*tiny_model())
    try:
        engine.open(0, text_spec(random_ids(20, 1)))

        def run(step: StepPlan) -> str:
            try:
                return engine.collect(engine.launch(step)).outcomes[0].error or "fine"
            except DeviceError as error:
                return str(error)

        assert "blocks that were given out" in run(plan(1, (0, 1), (0,))), "a plan that forgets a block"
        assert run(plan(2, (0, 1), (1,))) == "fine"
        assert "block 1 is called fresh" in run(plan(3, (0, 1), (1,)))
        engine.close(0)
        engine.open(0, text_spec(random_ids(20, 1)))
        assert "block 5 is freed, but nobody held it" in run(plan(4, (0, 1), (), (5,)))
        engine.close(0)
        engine.open(0, text_spec(random_ids(20, 1)))
        assert run(plan(5, (0, 1), (0,), (0,))) == "fine", "freed and fresh again in one plan"
        assert "block 96 is called fresh, but does not exist" in run(plan(6, (0, 96), (96,)))
    finally:
        engine.shutdown()


def test_closing_a_slot_leaves_shared_blocks_alone(driver: Driver) -> None:
    """The source is gone, its own blocks are NaN, and the adopter reads on in the shared ones."""
    engine, size = driver.engine, driver.engine.capabilities.block_size
    source, other = Request(driver, prompt(0), 0), Request(driver, prompt(0), 2)
    source.advance(131)
    taken = capture(source)
    do(driver, taken, adopted(other, taken, source.opened.blocks))
    own = [block for block in source.opened.blocks if block not in other.shared]
    assert len(other.shared) == 131 // size and len(own) == 1
    source.shared = other.shared
    source.close()
    other.finish()
    nan = engine.call(
        lambda runner, _: [bool((row != row).all()) for row in (runner.pool.kv[0].k[b * size] for b in own)]
    )
    assert nan == [True], "the trap"
    other.check()
    assert engine.audit(2) == []


# -- what is committed --------------------------------------------------------------------------------------------


def test_a_segment_commits_what_the_seam_says(driver: Driver) -> None:
    """Segments of any size: the engine holds the very position that policy computes from the segment."""
    pick = random.Random(4)
    seen = set()
    for slot in range(16):
        request = Request(driver, prompt(2), slot % 4)
        while request.row < 200:
            rows = request.next_rows(pick.choice([1, 3, 63, 64, 65, 90, 127, 200]))
            segment = Segment(0, SegmentKind.PREFILL, rows.start, rows.count, RowSource.PROMPT, sample=False)
            (outcome,) = driver.step([rows])
            request.took(rows, outcome.tokens)
            assert segment.commits == driver.engine.call(lambda _, slots, slot=slot: slots[slot % 4].start)
            seen.add(segment.commits - rows.start)
        request.close()
    assert 0 in seen and len(seen) > 5


def test_a_row_before_the_commit_is_refused_where_its_inputs_are_gone(driver: Driver) -> None:
    """Row 70 stands after the committed chunk's start at 64, but the convolution rows before it are overwritten."""
    request = Request(driver, prompt(2), 0)
    for rows in (64, 63, 64):
        request.advance(rows)
    bounds = driver.engine.call(lambda _, slots: (slots[0].base, slots[0].start, slots[0].high))
    assert bounds == (64, 127, 191)
    (outcome,) = driver.step([Rows(request.opened, 70, 64)])
    assert outcome.error == "row 70 is committed: the slot goes on from 127 or later"
    request.row = 127
    request.finish()
    request.check()


def test_outcomes_of_work_come_in_order(driver: Driver) -> None:
    requests = [Request(driver, prompt(index), index) for index in range(3)]
    for request in requests:
        request.advance(30)
    items = [capture(requests[2]), SlotWork(WorkKind.SAVE, 1, 99, 903), save(requests[0])]
    limits = driver.engine.capabilities
    first, second, third = driver.run(work=items).work
    assert first == WorkOutcome(2, limits.captured_bytes(30))
    assert second.slot == 1 and second.error is not None
    assert third == WorkOutcome(0, limits.saved_bytes(30))
    assert not same_bits(*(state.snapshot.kv[0].k[-1:] for state in states(driver.engine).values()))


def states(engine: Qwen35Engine) -> dict[int, Any]:
    return engine.call(lambda runner, _: runner.stored.states)
