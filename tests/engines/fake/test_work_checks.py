"""Every rule about work and blocks that a plan can break is refused, with a message that says which."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from luce.engines.fake.checks import PlanError
from luce.engines.fake.engine import Mode, fake_capabilities
from luce.engines.fake.reference import reference_tokens
from luce.engines.seam import SlotWork, StepPlan, WorkKind
from tests.engines.fake.harness import decode, prefill, text_spec
from tests.engines.fake.stored import (
    HANDLES,
    IMAGES,
    PENALTIES,
    TEXT,
    adopt,
    do,
    driver,
    item,
    restore,
    started,
)

Wrong = Callable[[SlotWork, SlotWork], SlotWork]
COPIES: list[tuple[str, Wrong]] = [
    ("only positions from 14 to 14", lambda taken, saved: item(WorkKind.SAVE, 0, 13, 900)),
    ("only positions from 14 to 14", lambda taken, saved: item(WorkKind.CAPTURE, 0, 0, 900)),
    ("only positions from 14 to 14", lambda taken, saved: item(WorkKind.SAVE, 0, 15, 900)),
    ("used or discarded before", lambda taken, saved: taken),
    ("is not open", lambda taken, saved: item(WorkKind.SAVE, 3, 1, 900)),
    ("only positions from 1 to 0", lambda taken, saved: item(WorkKind.SAVE, 1, 0, 900)),
    ("no such state", lambda taken, saved: item(WorkKind.ADOPT, 1, 14, 900, 0, 1, 2, 40)),
    ("no such state", lambda taken, saved: item(WorkKind.ADOPT, 1, 14, saved.handle, 0, 1, 2, 40)),
    ("no such state", lambda taken, saved: item(WorkKind.RESTORE, 1, 14, taken.handle, 40, 41, 42, 43)),
    (
        "stored at position 14",
        lambda taken, saved: item(WorkKind.RESTORE, 1, 13, saved.handle, 40, 41, 42, 43),
    ),
    ("14 rows already", lambda taken, saved: item(WorkKind.RESTORE, 0, 14, saved.handle, 40, 41, 42, 43)),
    ("leaves nothing", lambda taken, saved: item(WorkKind.ADOPT, 2, 14, taken.handle, 0, 1, 2, 40)),
    ("does not cover it", lambda taken, saved: item(WorkKind.RESTORE, 1, 14, saved.handle, 40, 41, 42)),
    ("stands twice", lambda taken, saved: item(WorkKind.RESTORE, 1, 14, saved.handle, 40, 41, 42, 42)),
    ("which nobody holds", lambda taken, saved: item(WorkKind.RESTORE, 1, 14, saved.handle, 40, 41, 42, 99)),
]


@pytest.mark.parametrize(("message", "wrong"), COPIES)
def test_bad_work(message: str, wrong: Wrong) -> None:
    running, taken, saved = started()
    running.open(1, TEXT)
    running.open(2, text_spec(TEXT.token_ids[:14].tolist(), PENALTIES))
    with pytest.raises(PlanError, match=message):
        do(running, wrong(taken, saved))


def test_whose_block_is_written() -> None:
    """The block that a snapshot's position cuts must be the adopter's own, and a restored slot's all."""
    running, taken, saved = started()
    table = running.tables[0]
    running.open(1, TEXT)
    with pytest.raises(PlanError, match=f"block {table[3]} is written by another sequence"):
        do(running, item(WorkKind.ADOPT, 1, 14, taken.handle, *table))
    running, taken, saved = started()
    running.open(1, TEXT)
    with pytest.raises(PlanError, match="written by another sequence"):
        do(running, item(WorkKind.RESTORE, 1, 14, saved.handle, *running.take(3), running.tables[0][3]))
    running, taken, _ = started()
    adopt(running, 1, TEXT, taken, running.tables[0])
    running.step(prefill(1, 14, 6, sample=True), prefill(0, 14, 6, sample=True))
    with pytest.raises(PlanError, match="before 14 are committed"):
        running.step(prefill(0, 13, 1))


@pytest.mark.parametrize(
    ("message", "fresh", "freed"),
    [
        ("calls block 3 fresh, which somebody holds", (3,), ()),
        ("frees block 3, which an open slot has", (), (3,)),
        ("calls block 64 fresh, which does not exist", (64,), ()),
        ("frees block 30, which nobody holds", (), (30,)),
        ("calls block 40 fresh, which somebody holds", (40, 40), ()),
        ("frees block 5, which nobody holds", (), (5, 5)),
    ],
)
def test_blocks_are_given_out_and_taken_back_once(
    message: str, fresh: tuple[int, ...], freed: tuple[int, ...]
) -> None:
    engine = driver().engine
    engine.open(0, TEXT)
    row = prefill(0, 0, 1)
    engine.collect(engine.launch(StepPlan(1, (row,), ((3,),), fresh_blocks=(3, 5))))
    plan = StepPlan(2, (row,), ((3,),), fresh_blocks=fresh, freed_blocks=freed)
    with pytest.raises(PlanError, match=message):
        engine.launch(plan)


def test_a_block_may_be_freed_and_fresh_in_one_plan() -> None:
    engine = driver().engine
    engine.open(0, TEXT)
    engine.collect(engine.launch(StepPlan(1, (prefill(0, 0, 1),), ((3,),), fresh_blocks=(3, 5))))
    plan = StepPlan(2, (prefill(0, 0, 9),), ((3, 5, 6),), fresh_blocks=(5, 6), freed_blocks=(5,))
    assert engine.collect(engine.launch(plan)).outcomes[0].kept == 9


def test_an_engine_that_does_not_park_or_cache_says_so() -> None:
    for changes, kind in (({"parking": False}, WorkKind.SAVE), ({"snapshots": False}, WorkKind.CAPTURE)):
        running = driver(**changes)
        running.open(0, TEXT)
        running.step(prefill(0, 0, 5))
        with pytest.raises(PlanError, match="does not do that"):
            do(running, item(kind, 0, 5, 900))


def test_what_is_in_flight_is_not_closed_or_discarded() -> None:
    running = driver(Mode.MANUAL)
    running.open(0, TEXT)
    running.launch(prefill(0, 0, 5))
    ticket = running.launch(work=[item(WorkKind.SAVE, 0, 5, 900)])
    with pytest.raises(PlanError, match=f"closed with a row in step {ticket.number - 1}"):
        running.close(0)
    running.engine.finish_next()
    running.engine.collect(running.engine._uncollected[0])
    with pytest.raises(PlanError, match=f"closed with work in step {ticket.number}"):
        running.engine.close(0)
    with pytest.raises(PlanError, match=f"handle 900 is discarded with work in step {ticket.number}"):
        running.engine.discard(900)
    running.engine.finish_next()
    running.engine.collect(ticket)
    running.close(0)
    running.engine.discard(900)
    with pytest.raises(PlanError, match="discarded already"):
        running.engine.discard(900)
    running.engine.discard(901)  # never launched
    running.open(0, TEXT)
    running.launch(prefill(0, 0, 5))
    with pytest.raises(PlanError, match="used or discarded before"):
        running.launch(work=[item(WorkKind.SAVE, 0, 5, 901)])


def test_sequences_with_pictures_that_cannot_be_computed_again() -> None:
    capabilities = fake_capabilities(images_recomputable=False)
    assert capabilities.recomputes(TEXT) and not capabilities.recomputes(IMAGES)
    assert not fake_capabilities(recomputable=False).recomputes(TEXT)
    running = driver(images_recomputable=False)
    length = len(IMAGES.token_ids)
    tokens = reference_tokens(IMAGES, 9)
    running.open(0, IMAGES)
    assert running.generate(0, IMAGES, 3) == tokens[:3]
    saved = item(WorkKind.SAVE, 0, length + 2, next(HANDLES))
    do(running, saved)
    running.close(0)
    assert restore(running, 1, IMAGES, saved)[0].error is None, "saving is what there is"
    out = [running.tokens(decode(1, length + 2 + index))[0] for index in range(6)]
    assert out == tokens[3:]
    for slot, content in ((2, IMAGES), (3, IMAGES.with_generated(tokens[:3]))):
        running.open(slot, content)
        with pytest.raises(PlanError, match="cannot be computed again"):
            running.step(prefill(slot, 0, 4))
    text = driver(images_recomputable=False)
    for slot in (0, 1):
        text.open(slot, TEXT)
        assert text.generate(slot, TEXT, 4) == reference_tokens(TEXT, 4)
