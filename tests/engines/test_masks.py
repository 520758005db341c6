"""Masks of plans on both engines, and rows whose token was sampled without one: fed once more, saved in between."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from luce.engines.fake.checks import PlanError
from luce.engines.fake.engine import FakeEngine, Mode, fake_capabilities
from luce.engines.seam import (
    Mask,
    RowSource,
    Segment,
    SegmentKind,
    SlotSpec,
    SlotWork,
    StepPlan,
    StoresStates,
    WorkKind,
)
from luce.sampling.masks import mask_of
from luce.sampling.parameters import SamplingParams
from tests.engines.harness import new_engine
from tests.engines.models import SAMPLED_IDS, tiny_model

PROMPT, VOCAB = 5, 256


def spec_of(seed: int = 5) -> SlotSpec:
    tokens = np.arange(3, 3 + PROMPT, dtype=np.int32)
    positions = np.tile(np.arange(PROMPT, dtype=np.int32), (3, 1))
    params = SamplingParams(temperature=1.5, seed=seed, max_tokens=20, repetition_penalty=1.1)
    return SlotSpec(tokens, positions, 0, params, 20)


def allowed(place: int, ids: int) -> list[int]:
    return [index for index in range(ids) if (index * 7 + place) % 31 < 2]


class Lone:
    """One sequence in slot 0, whose ten tokens come under masks, but for the third."""

    def __init__(self, engine: StoresStates, ids: int) -> None:
        self.engine, self.ids, self.number = engine, ids, 0
        self.table, self.fresh, self.freed = (0, 1), (0, 1), tuple[int, ...]()
        self.spec = spec_of()
        engine.open(0, self.spec)

    def launch(
        self, segments: tuple[Segment, ...], masks: tuple[Mask | None, ...], work: tuple[SlotWork, ...] = ()
    ) -> int | None:
        self.number += 1
        tables = (self.table,) * len(segments)
        plan = StepPlan(self.number, segments, tables, work, self.fresh, self.freed, masks)
        self.fresh = self.freed = ()
        result = self.engine.collect(self.engine.launch(plan))
        assert [item.error for item in result.work] == [None] * len(work)
        assert [outcome.error for outcome in result.outcomes] == [None] * len(segments)
        return result.outcomes[0].tokens[0].token if segments else None

    def token(self, place: int, mask: Mask | None) -> int:
        """The token of that place of the answer, from the prompt or the last row."""
        segment = Segment(0, SegmentKind.PREFILL, 0, PROMPT, RowSource.PROMPT, True)
        if place:
            start = PROMPT + place - 1
            segment = Segment(0, SegmentKind.DECODE, start, 1, RowSource.LAST_SAMPLED, True)
        token = self.launch((segment,), (mask,) if mask is not None else ())
        assert token is not None
        return token

    def move(self, position: int) -> None:
        """Saved there, and restored in other blocks."""
        self.launch((), (), (SlotWork(WorkKind.SAVE, 0, position, 1),))
        self.engine.close(0)
        self.engine.open(0, self.spec)
        self.freed, self.table = self.table, (2, 3)
        self.fresh = self.table
        self.launch((), (), (SlotWork(WorkKind.RESTORE, 0, position, 1, self.table),))

    def answer(self, *, void: int | None = None, parked: bool = False) -> list[int]:
        """
        Args:
            void: the token of this place is one that its mask does not allow first.
            parked: and the slot is moved then.
        """
        tokens: list[int] = []
        for place in range(10):
            mask = None if place == 2 else mask_of(allowed(place, self.ids), self.ids)
            if place == void:
                others = set(range(self.ids)).difference(allowed(place, self.ids))
                self.token(place, mask_of(others, self.ids))
                if parked:
                    self.move(PROMPT + place - 1)
            tokens.append(self.token(place, mask))
        return tokens


Make = Callable[[], Lone]


@pytest.fixture(params=["qwen35", "fake"])
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    made: list[Lone] = []

    def one() -> Lone:
        if request.param == "fake":
            small = fake_capabilities(num_blocks=4, vocab_size=VOCAB)
            made.append(Lone(FakeEngine(small, mode=Mode.INLINE), VOCAB))
        else:
            made.append(Lone(new_engine(*tiny_model(), num_blocks=4), SAMPLED_IDS))
        return made[-1]

    yield one
    for lone in made:
        lone.engine.shutdown()


def test_tokens_are_those_that_the_masks_allow(make: Make) -> None:
    lone = make()
    tokens = lone.answer()
    for place, token in enumerate(tokens):
        if place != 2:
            assert token in allowed(place, lone.ids)
    assert tokens[2] not in allowed(2, lone.ids), "the trap: a free token is another"


@pytest.mark.parametrize("void", [1, 5, 9])
@pytest.mark.parametrize("parked", [False, True])
def test_a_row_whose_token_is_void_is_fed_once_more(make: Make, void: int, parked: bool) -> None:
    lone, again = make(), make()
    assert again.answer(void=void, parked=parked) == lone.answer()


def test_wrong_masks_are_refused() -> None:
    """By the fake engine, which refuses what a real one would take."""
    lone = Lone(FakeEngine(fake_capabilities(num_blocks=4), mode=Mode.INLINE), VOCAB)
    mask = mask_of([1], VOCAB)
    writable = mask.copy()
    chunk = Segment(0, SegmentKind.PREFILL, 0, 2, RowSource.PROMPT, False)
    whole = Segment(0, SegmentKind.PREFILL, 0, PROMPT, RowSource.PROMPT, True)
    with pytest.raises(PlanError, match="2 masks for 1 segments"):
        lone.launch((whole,), (mask, mask))
    with pytest.raises(PlanError, match="samples nothing"):
        lone.launch((chunk,), (mask,))
    with pytest.raises(PlanError, match="may still change"):
        lone.launch((whole,), (writable,))
    lone.engine.shutdown()
