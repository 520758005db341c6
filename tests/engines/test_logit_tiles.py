"""Logits are made a few rows at a time: the memory does not grow with the slots, and no bit depends on it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from luce.engines.qwen35.engine import Qwen35Engine
from luce.engines.qwen35.text import LOGIT_ROWS
from tests.engines.harness import Driver, Rows, new_engine, random_ids, same_bits, text_spec
from tests.engines.models import NAN_TOKEN, tiny_model

SLOTS = 2 * LOGIT_ROWS + 5


def test_logits_take_the_memory_of_one_tile_of_rows() -> None:
    """Armed: an engine with more slots than that, whose rows all want logits at once."""
    engine = new_engine(*tiny_model(), num_slots=SLOTS, num_blocks=600)
    try:
        model = engine._runner.model
        assert model._logits.shape == (LOGIT_ROWS, model.weights.head.width)
    finally:
        engine.shutdown()


@pytest.mark.parametrize("failing", [False, True])
def test_more_rows_than_a_tile_get_the_bits_that_each_gets_alone(failing: bool) -> None:
    """Prompts of one and of several passes alternate, so that rows come to their logits in another order than the
    plan's; with ``failing`` some of them hold a NaN and fail alone."""
    prompts = [random_ids(70 + index if index % 2 else 5 + index, index) for index in range(SLOTS)]
    broken = {3, 8, 20} if failing else set()
    for index in broken:
        prompts[index][2] = NAN_TOKEN
    engine = new_engine(*tiny_model(), num_slots=SLOTS, num_blocks=600)
    try:
        driver = Driver(engine)
        sequences = [driver.open(text_spec(ids), slot=slot) for slot, ids in enumerate(prompts)]
        outcomes = driver.step([Rows(one, 0, len(one.spec.token_ids)) for one in sequences])
        assert {outcome.slot for outcome in outcomes if outcome.error is not None} == broken
        for slot, sequence in enumerate(sequences):
            if slot in broken:
                assert sequence.recorder.logits == {}
                continue
            (row,) = sequence.recorder.logits.values()
            assert same_bits(row, alone(engine, prompts[slot])), slot
    finally:
        engine.shutdown()


def alone(engine: Qwen35Engine, ids: list[int]) -> npt.NDArray[np.float32]:
    """Logits of the last row, by a pass of its own over a pool of its own."""
    return engine.forward_all(text_spec(ids))[0][-1]
