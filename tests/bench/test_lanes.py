"""Sequences driven through the seam: what is measured is what was asked for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from luce.bench.lanes import Lanes
from luce.engines.load_model import LoadOptions, load_engine
from luce.engines.qwen35.engine import Qwen35Engine
from luce.engines.synthetic_model import open_synthetic

ROOM = 320


@pytest.fixture(scope="module")
def engine() -> Iterator[Qwen35Engine]:
    engine = load_engine(open_synthetic("luce-demo", LoadOptions(slots=3, context=ROOM)))
    yield engine
    engine.shutdown()


def lanes(engine: Qwen35Engine, depth: int = 1, temperature: float = 0.0) -> Lanes:
    return Lanes(engine, ROOM, depth, num_ids=1000, temperature=temperature)


def tokens(engine: Qwen35Engine, slot: int) -> list[int]:
    return engine.call(lambda _, slots: [int(one) for one in slots[slot].ids[: slots[slot].high]])


@pytest.mark.parametrize("depth", [1, 2])
def test_copies_of_a_sequence_go_on_as_it_does(engine: Qwen35Engine, depth: int) -> None:
    """Filled from one prompt; recomputing each from its tokens gives the same state, and greedy answers are equal."""
    found = lanes(engine, depth)
    found.fill(3, 130, piece=48)
    assert found.rows == [130] * 3
    found.decode(3, 5)
    found.decode(2, 3)
    assert found.rows == [138, 138, 135]
    assert [engine.audit(slot) for slot in range(3)] == [[], [], []]
    first, second, third = (tokens(engine, slot) for slot in range(3))
    assert first == second and first[: len(third)] == third and len(set(first[130:])) > 1
    found.close()


def test_answers_differ_by_their_seeds(engine: Qwen35Engine) -> None:
    """So that experts and samplers have as much to do as with different requests."""
    found = lanes(engine, temperature=1.0)
    found.fill(3, 70, piece=70)
    found.decode(3, 12)
    assert len({tuple(tokens(engine, slot)[71:]) for slot in range(3)}) == 3
    found.close()


def test_blocks_are_free_again_after_a_close(engine: Qwen35Engine) -> None:
    for _ in range(3):
        found = lanes(engine)
        found.fill(2, ROOM - 5, piece=128)
        found.close()
        assert found.rows == []


def test_a_prompt_beside_decoding_sequences(engine: Qwen35Engine) -> None:
    found = lanes(engine)
    found.fill(2, 65, piece=64)
    slot = found.open(100, seed=9)
    for _ in range(4):
        found.step([found.row(0), found.row(1), found.chunk(slot, 20, 100)])
    found.wait()
    assert found.rows == [69, 69, 80]
    assert [engine.audit(one) for one in range(3)] == [[], [], []]
    found.close()
