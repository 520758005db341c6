"""Every rule of the seam that a plan can break is refused, with a message that says which."""

from collections.abc import Callable
from typing import Any

import attrs
import numpy as np
import pytest

from luce.engines.fake.checks import PlanError
from luce.engines.fake.engine import FakeEngine, Mode, fake_capabilities
from luce.engines.seam import ImageSpan, RowSource, Segment, SegmentKind, SlotSpec, StepPlan
from tests.engines.fake.harness import Driver, decode, image_spec, prefill, text_spec

SPEC = text_spec(list(range(10)))
IMAGES = image_spec([1, 2], [b"cat"], [3])


def started(**changes: Any) -> Driver:
    """Slot 0 has its 10 prompt rows in 3 blocks of 4 and one sampled token; slot 1 is open and empty."""
    small: dict[str, Any] = {"block_size": 4, "num_blocks": 16, "max_context": 30}
    running = Driver(FakeEngine(fake_capabilities(**small | changes), mode=Mode.INLINE))
    running.open(0, SPEC)
    running.open(1, SPEC)
    running.step(prefill(0, 0, 10, sample=True))
    return running


BAD: list[tuple[str, Segment]] = [
    ("not open", prefill(2, 0, 5)),
    ("not open", prefill(77, 0, 5)),
    ("a gap after 0 rows", prefill(1, 1, 5)),
    ("a gap after 10 rows", decode(0, 11)),
    ("a gap", prefill(0, -1, 2)),
    ("a gap", prefill(1, 0, 0)),
    ("not prefill of the prompt", prefill(1, 0, 11)),
    ("samples in the middle", prefill(1, 0, 9, sample=True)),
    ("no token was sampled", decode(0, 9)),
    ("no token was sampled", decode(1, 0)),
    ("only a decode row", Segment(0, SegmentKind.DECODE, 10, 2, RowSource.LAST_SAMPLED, True)),
    ("only a decode row", Segment(0, SegmentKind.VERIFY, 10, 1, RowSource.LAST_SAMPLED, True)),
    ("not of a staged pass", Segment(1, SegmentKind.STAGED, 0, 5, RowSource.PROMPT, False)),
    ("only staged passes", Segment(1, SegmentKind.PREFILL, 0, 5, RowSource.PROMPT, False, (0, 1))),
]


@pytest.mark.parametrize(("message", "segment"), BAD)
def test_bad_segments(message: str, segment: Segment) -> None:
    running = started()
    with pytest.raises(PlanError, match=message):
        running.launch(segment, tables=[(9, 10, 11)])


@pytest.mark.parametrize(
    ("message", "tables"),
    [
        ("does not cover", [(9, 10)]),
        ("stands twice", [(9, 10, 10)]),
        ("16, which nobody holds", [(9, 10, 16)]),
        ("-1, which nobody holds", [(9, 10, -1)]),
        ("1 segments, 0 items of work, 2 block tables", [(9, 10, 11), (9, 10, 11)]),
    ],
)
def test_bad_tables(message: str, tables: list[tuple[int, ...]]) -> None:
    with pytest.raises(PlanError, match=message):
        started().launch(prefill(1, 0, 10), tables=tables)


def test_two_writers_of_one_block() -> None:
    running = started()
    table = running.tables[0]
    with pytest.raises(PlanError, match=f"block {table[2]} is written by another sequence"):
        running.launch(decode(0, 10), prefill(1, 0, 10), tables=[table, (9, 10, table[2])])
    running = started()  # reading a shared block is fine
    running.launch(decode(0, 10), prefill(1, 0, 3), tables=[running.tables[0], (9, *running.tables[0][:2])])


def test_bad_plans() -> None:
    running = started()
    with pytest.raises(PlanError, match="named twice"):
        running.launch(prefill(1, 0, 2), prefill(1, 2, 2), tables=[(9,), (9,)])
    with pytest.raises(PlanError, match="step 1 after step"):
        running.engine.launch(StepPlan(1, (prefill(1, 0, 2),), ((9,),)))
    with pytest.raises(PlanError, match="0 segments"):
        running.launch()


def test_the_context_ends_somewhere() -> None:
    running = started()
    for row in range(10, 30):
        running.step(decode(0, row))
    with pytest.raises(PlanError, match="context of 30"):
        running.launch(decode(0, 30))


def test_images_must_be_there_and_whole_if_declared() -> None:
    running = started(whole_image_blocks=True)
    spec = image_spec([1, 2], [b"cat"], [3])
    rows = spec.image_rows[0]
    spec.image_rows[0] = None
    running.open(2, spec)
    running.step(prefill(2, 0, 2))  # text before the picture needs nothing
    with pytest.raises(PlanError, match="image 0 is not there"):
        running.launch(prefill(2, 2, 5, sample=True))
    assert rows is not None
    spec.image_rows[0] = rows[:3]
    with pytest.raises(PlanError, match="in 4 rows"):
        running.launch(prefill(2, 2, 5, sample=True))
    spec.image_rows[0] = rows
    with pytest.raises(PlanError, match="splits"):
        running.launch(prefill(2, 2, 3))
    running.step(prefill(2, 2, 5, sample=True))


OPENINGS: list[tuple[str, int, Callable[[], SlotSpec]]] = [
    ("open already", 0, lambda: SPEC),
    ("does not exist", 4, lambda: SPEC),
    ("does not exist", -1, lambda: SPEC),
    ("at least one token", 2, lambda: text_spec([])),
    ("positions must be", 2, lambda: attrs.evolve(SPEC, positions=np.zeros((3, 9), np.int32))),
    ("outside the prompt", 2, lambda: attrs.evolve(IMAGES, spans=(ImageSpan(4, 4, 0),))),
    ("names no image", 2, lambda: attrs.evolve(IMAGES, image_rows=[])),
]


@pytest.mark.parametrize(("message", "slot", "spec"), OPENINGS)
def test_bad_openings(message: str, slot: int, spec: Callable[[], SlotSpec]) -> None:
    with pytest.raises(PlanError, match=message):
        started().open(slot, spec())


def test_no_images_on_a_text_engine() -> None:
    with pytest.raises(PlanError, match="takes no images"):
        started(images=False).open(2, IMAGES)


def test_bad_closings() -> None:
    running = started()
    with pytest.raises(PlanError, match="not open"):
        running.engine.close(3)
    ticket = running.launch(decode(0, 10))
    with pytest.raises(PlanError, match="closed with a row in step"):
        running.engine.close(0)
    running.engine.close(1)
    running.engine.collect(ticket)
    running.engine.close(0)
    assert running.engine.open_slots == frozenset()
