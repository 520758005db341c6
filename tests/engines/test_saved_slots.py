"""Save and restore, drop and compute again: a request that was away goes on with the bits it would have had (§6).

Every engine here holds NaN in what belongs to nobody.
"""

from __future__ import annotations

import attrs
import numpy as np
import pytest

from luce.engines.seam import RowSource, WorkOutcome
from tests.engines.harness import Driver
from tests.engines.requests import TOKENS, Request, alone, do, image_rows, prompt, restored, save, step


@pytest.mark.parametrize("index", [0, 2, 6])
@pytest.mark.parametrize("rows", [1, 40, 1000])
@pytest.mark.parametrize("again", [0, 4])
def test_save_and_restore(driver: Driver, index: int, rows: int, again: int) -> None:
    """In the prompt and in the answer, into another slot and other blocks, while a neighbour runs in the old ones."""
    engine, spec = driver.engine, prompt(index)
    sequence, neighbour = Request(driver, spec, 1), Request(driver, prompt(3), 2)
    step(driver, [sequence, neighbour], [rows, 5])
    for _ in range(again):
        step(driver, [neighbour, sequence], [3, 1000])
    saved, content = save(sequence), sequence.content
    (outcome,) = do(driver, saved)
    assert outcome.nbytes == engine.capabilities.saved_bytes(saved.position)
    assert engine.audit_stored(saved.handle, sequence.so_far) == []
    old = set(sequence.opened.blocks)
    sequence.close()
    third = Request(driver, prompt(4), 1)  # takes the slot and, the pool being shuffled, blocks
    step(driver, [neighbour, third], [64, 64])
    work = restored(sequence, 0, saved, content)
    assert set(sequence.opened.blocks) != old or len(old) < 3
    rows_beside = neighbour.next_rows(2)
    result = driver.run([rows_beside], [work])
    assert result.work[0].error is None
    neighbour.took(rows_beside, result.outcomes[0].tokens)
    assert engine.audit(0) == []
    engine.discard(saved.handle)
    while not sequence.done and not third.done:
        step(driver, [third, sequence], [7, 11])
    for one in (sequence, neighbour, third):
        one.finish()
        one.check()
        assert engine.audit(one.slot) == []
    assert engine.call(lambda runner, _: runner.stored.nbytes) == 0


def test_restored_and_run_on_in_one_plan_with_the_save_still_in_flight(driver: Driver) -> None:
    """Depth 2: nobody has seen the result of the save when the restore is launched."""
    engine, spec = driver.engine, prompt(0)
    sequence = Request(driver, spec, 0)
    sequence.advance()
    sequence.advance()
    saved, content = save(sequence), sequence.content
    first = engine.launch(driver.plan(work=[saved]))
    sequence.close()
    work = restored(sequence, 0, saved, content)
    rows = sequence.next_rows(1)
    second = engine.launch(driver.plan([rows], [work]))
    assert engine.collect(first).work == (WorkOutcome(0, engine.capabilities.saved_bytes(151)),)
    result = engine.collect(second)
    assert result.work == (WorkOutcome(0),)
    sequence.took(rows, result.outcomes[0].tokens)
    sequence.finish()
    sequence.check()


@pytest.mark.parametrize("known", [1, 3, 4])
def test_a_saved_slot_may_come_back_with_its_tokens_in_the_prompt(driver: Driver, known: int) -> None:
    """Opened with prompt and answer so far, as for a drop: with all of it the token not fed yet is a prompt row."""
    sequence = Request(driver, prompt(0), 0)
    for _ in range(4):
        sequence.advance()
    saved = save(sequence)
    do(driver, saved)
    sequence.close()
    content = sequence.spec.with_generated([token.token for token in sequence.tokens[:known]])
    do(driver, restored(sequence, 2, saved, content))
    assert (sequence.next_rows(9).source is RowSource.PROMPT) == (known == 4)
    sequence.finish()
    sequence.check()
    assert driver.engine.audit(2) == []


def test_a_save_is_a_copy_and_the_slot_may_go_on(driver: Driver) -> None:
    sequence = Request(driver, prompt(1), 0)
    sequence.advance()
    saved, content = save(sequence), sequence.content
    do(driver, saved)
    sequence.finish()
    sequence.check()
    sequence.close()
    back = Request(driver, prompt(1), 3)
    back.close()
    do(driver, restored(back, 1, saved, content))
    back.tokens = sequence.tokens[:1]
    back.finish()
    back.check()
    assert len(back.logits) == TOKENS - 1


@pytest.mark.parametrize("index", [0, 1, 2, 4, 5])
@pytest.mark.parametrize("count", [0, 1, 5, 9])
def test_drop_and_compute_again(driver: Driver, index: int, count: int) -> None:
    """Penalties, minimum tokens, positions after pictures, image rows: all as if nothing had happened."""
    spec = prompt(index)
    sequence = Request(driver, spec, 0)
    for _ in range(count):
        sequence.advance()
    sequence.close()
    content = sequence.so_far
    assert content.num_generated == count and content.max_tokens == 20 - count
    assert content.image_rows is spec.image_rows
    sequence.open(3, content)
    sequence.advance(50)
    sequence.finish()
    sequence.check()
    assert driver.engine.audit(3) == []


def test_what_makes_a_recompute_exact_is_in_the_spec(driver: Driver) -> None:
    """Arms the test above: without the count of generated tokens, or at other positions, the answer changes."""
    sequence = Request(driver, prompt(0), 0)
    for _ in range(5):
        sequence.advance()
    sequence.close()
    right, _ = alone(prompt(0))
    content = sequence.so_far
    for wrong in (
        attrs.evolve(content, num_generated=0),
        attrs.evolve(content, positions=np.minimum(content.positions, content.positions[:, 149:150])),
        attrs.evolve(content, image_rows=[image_rows(10, 9), image_rows(3, 9)]),
    ):
        sequence.open(0, wrong)
        sequence.tokens = right[:5]
        sequence.finish()
        assert sequence.tokens != right
        sequence.close()
