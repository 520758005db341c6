"""Reported faults around positions and pictures (cases B15, B16, B20, B24, B63), each armed first."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from luce.engines.qwen35.engine import Qwen35Engine
from luce.engines.seam import RowSource, SlotSpec
from tests.engines.harness import Driver, Rows, image_spec, new_engine, random_ids, same_bits, text_spec
from tests.engines.models import tiny_model

WIDE, TALL, LARGE = (4, 20), (40, 2), (16, 24)


def pictures(seed: int, *grids: tuple[int, int]) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((gh * gw // 4, 64)).astype(np.float32) for gh, gw in grids]


def two_pictures(max_tokens: int = 64) -> SlotSpec:
    ids = random_ids(30, 1)
    return image_spec(
        [*ids[:5], WIDE, *ids[5:12], TALL, *ids[12:]], pictures(2, WIDE, TALL), max_tokens=max_tokens
    )


@pytest.fixture
def engine() -> Iterator[Qwen35Engine]:
    engine = new_engine(*tiny_model())
    yield engine
    engine.shutdown()


def test_b15_a_chunk_uses_its_slice_of_the_positions(engine: Qwen35Engine) -> None:
    spec = two_pictures()
    expected, _ = engine.forward_all(spec)
    shifted = SlotSpec(
        spec.token_ids, spec.positions * 0 + np.arange(len(spec.token_ids), dtype=np.int32), 0, None, 1,
        spec.spans, spec.image_rows,
    )  # fmt: skip
    plain, _ = engine.forward_all(shifted)
    assert np.abs(plain - expected).max() > 0.01, "the trap: plain positions give other logits"
    for chunk in (1, 7, 16, 33, 1000):
        driver = Driver(engine, chunk)
        opened = driver.open(spec)
        driver.prefill(opened, *range(chunk, len(spec.token_ids), chunk))
        for position, logits in opened.recorder.logits.items():
            assert same_bits(logits, expected[position - 1]), (chunk, position)
        driver.close(opened)


@pytest.mark.parametrize("grids", [(WIDE,), (TALL,), (LARGE, TALL), (WIDE, TALL, LARGE)])
def test_b16_decode_position_is_count_plus_delta(
    engine: Qwen35Engine, grids: tuple[tuple[int, int], ...]
) -> None:
    """Twenty tokens after the pictures, forced: each step's logits equal those of one whole prefill."""
    lead, tail = random_ids(6, 4), random_ids(9, 5)
    forced = random_ids(20, 6)
    rows = pictures(3, *grids)
    parts = [part for grid in grids for part in (*lead, grid)]
    spec = image_spec([*parts, *tail], rows)
    first = len(spec.token_ids)
    script = {first + n: token for n, token in enumerate(forced)}
    driver = Driver(engine)
    opened = driver.open(spec, script=script)
    driver.prefill(opened)
    driver.decode(opened, 19)
    whole = image_spec([*parts, *tail, *forced], rows)
    expected, _ = engine.forward_all(whole)
    for position, logits in opened.recorder.logits.items():
        assert same_bits(logits, expected[position - 1]), position
    assert len(opened.recorder.logits) == 20
    if spec.rope_delta == 0:
        return  # very tall: the picture takes as many positions as rows
    wrong = text_spec(forced)
    wrong = SlotSpec(
        whole.token_ids,
        np.concatenate([spec.positions, np.broadcast_to(np.arange(first, first + 20), (3, 20))], axis=1),
        0, None, 1, whole.spans, whole.image_rows,
    )  # fmt: skip
    raw, _ = engine.forward_all(wrong)
    assert np.abs(raw[first:] - expected[first:]).max() > 1e-3, "the trap: the raw count gives other logits"


def test_b16_both_kinds_of_delta_are_tried() -> None:
    assert image_spec([1, TALL], pictures(0, TALL)).rope_delta == 0
    assert image_spec([1, WIDE], pictures(0, WIDE)).rope_delta < 0


def test_b20_any_prefill_budget_for_a_large_picture(engine: Qwen35Engine) -> None:
    spec = image_spec([*random_ids(5, 7), LARGE, *random_ids(8, 8)], pictures(9, LARGE))
    assert spec.spans[0].length == 96
    expected, _ = engine.forward_all(spec)
    answers = []
    for budget in (16, 32, 95, 96, 97, 256):
        driver = Driver(engine, budget)
        opened = driver.open(spec)
        driver.prefill(opened, *range(budget, len(spec.token_ids), budget))
        for position, logits in opened.recorder.logits.items():
            assert same_bits(logits, expected[position - 1]), (budget, position)
        answers.append(driver.decode(opened, 8))
        driver.close(opened)
    assert all(answer == answers[0] for answer in answers)


def test_b24_two_rows_with_different_pictures(engine: Qwen35Engine) -> None:
    """Each row gets its own picture's features, per chunk, also when only some rows have any."""
    specs = [
        image_spec([*random_ids(4, 1), LARGE, 5], pictures(1, LARGE)),
        image_spec([*random_ids(4, 1), LARGE, 5], pictures(2, LARGE)),
        text_spec(random_ids(90, 3)),
    ]
    expected = [engine.forward_all(spec)[0] for spec in specs]
    assert not same_bits(expected[0][-1], expected[1][-1]), "the trap: the pictures differ"
    driver = Driver(engine)
    opened = [driver.open(spec, slot) for slot, spec in enumerate(specs)]
    while any(sequence.high < len(sequence.spec.token_ids) for sequence in opened):
        rows = [
            Rows(s, s.high, min(8, len(s.spec.token_ids) - s.high))
            for s in opened
            if s.high < len(s.spec.token_ids)
        ]
        driver.step(rows)
    for sequence, logits in zip(opened, expected, strict=True):
        for position, row in sequence.recorder.logits.items():
            assert same_bits(row, logits[position - 1])


def test_b24_a_picture_without_rows_fails_its_request_alone(engine: Qwen35Engine) -> None:
    spec = image_spec([1, 2, WIDE, 3], [None])
    driver = Driver(engine)
    blind, other = driver.open(spec, 0), driver.open(text_spec([4, 5]), 1)
    outcomes = driver.step([Rows(blind, 0, 5), Rows(other, 0, 2)])
    assert "image 0 has no rows" in (outcomes[0].error or "") and outcomes[1].error is None
    spec.image_rows[0] = pictures(1, WIDE)[0][:, :50]
    outcomes = driver.step([Rows(blind, 0, 5), Rows(other, 1, 1)])
    assert "[20, 64] are needed" in (outcomes[0].error or "") and outcomes[1].error is None
    spec.image_rows[0] = pictures(1, WIDE)[0]
    (again,) = driver.step([Rows(blind, 0, 23)])
    assert again.error is None, "nothing was computed, so the slot is still good"


def test_b63_positions_are_per_sequence(engine: Qwen35Engine) -> None:
    """Prefill A, prefill B of another length, then alternate single decode steps; both as if alone."""
    specs = [text_spec(random_ids(40, 1)), two_pictures()]
    alone = []
    for spec in specs:
        driver = Driver(engine)
        opened = driver.open(spec)
        driver.prefill(opened)
        alone.append((driver.decode(opened, 30), opened.recorder.logits))
        driver.close(opened)
    driver = Driver(engine, 5)
    both = [driver.open(spec, slot) for slot, spec in zip((3, 1), specs, strict=True)]
    for opened in both:
        driver.prefill(opened)
    for _ in range(30):
        for opened in both:
            driver.step([Rows(opened, opened.high, 1, RowSource.LAST_SAMPLED)])
    for opened, (_, logits) in zip(both, alone, strict=True):
        assert opened.recorder.logits.keys() == logits.keys()
        assert all(same_bits(opened.recorder.logits[p], logits[p]) for p in logits)
